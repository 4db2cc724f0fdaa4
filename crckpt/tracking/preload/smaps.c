/*
 * CRIU reads smaps of each frozen process only for the flags of its maps (criu/proc_parse.c, parse_smaps). For that the
 * kernel looks at every page of the process: 10 ms a GB. No other file has the flags. But a BPF iterator reads them as
 * the kernel keeps them: as bits (vm_flags), which differ between kernels, and which determine the words in smaps. So
 * the words of each set of bits are learnt from one smaps of the frozen process, and kept in a table of its tree while
 * that is tracked. From then on smaps is made from maps, the iterator and the table. If these do not suffice, or there
 * is no such iterator (it needs Linux 6.1 and root), smaps is read.
 *
 * Sources: linux/bpf.h, linux/btf.h; fs/proc/task_mmu.c, kernel/bpf/task_iter.c of Linux 6.18.
 */
#include "dump_library.h"

#include <linux/bpf.h>
#include <linux/btf.h>
#include <sys/file.h>

/* linux/btf.h, which may be older than the kernel. */
#define DECL_TAG 17
#define ENUM64 19

#define VMFLAGS "VmFlags: "
#define OF_THE_KERNEL (1ull << 63)
/* Entries of a table. A tree has some dozens. */
#define MOST 1024
#define NONE_TOLD (~0ull)

/* What the iterator writes for each map. */
struct vma {
    uint64_t start, end, flags;
};

/* An entry of the table: the end of smaps' line of flags, with its newline. */
struct meaning {
    uint64_t flags;
    char words[120];
};

/* The kernel's description of its types. */
struct btf {
    const char *types, *end, *names;
};

static const char *table_path;
static int program = -1;

static int kind_of(const struct btf_type *type)
{
    return type->info >> 24 & 31;
}

static size_t length_of(const struct btf_type *type)
{
    size_t parts = type->info & 0xffff;
    switch (kind_of(type)) {
    case BTF_KIND_INT:
    case BTF_KIND_VAR:
    case DECL_TAG:
        return sizeof *type + 4;
    case BTF_KIND_ARRAY:
        return sizeof *type + 12;
    case BTF_KIND_ENUM:
    case BTF_KIND_FUNC_PROTO:
        return sizeof *type + 8 * parts;
    case BTF_KIND_STRUCT:
    case BTF_KIND_UNION:
    case BTF_KIND_DATASEC:
    case ENUM64:
        return sizeof *type + 12 * parts;
    default:
        return sizeof *type;
    }
}

/* The type of this `kind` and `name`, whose number is set, or, without a name, of this number; NULL if there is none. */
static const struct btf_type *find_type(const struct btf *btf, int kind, const char *name, uint32_t *number)
{
    uint32_t at = 1; /* 0 is no type */
    const struct btf_type *type;
    for (const char *place = btf->types; place < btf->end; place += length_of(type), at++) {
        type = (const void *)place;
        if (kind_of(type) > ENUM64)
            return NULL;
        if (name ? kind_of(type) == kind && !strcmp(btf->names + type->name_off, name) : at == *number) {
            *number = at;
            return type;
        }
    }
    return NULL;
}

/* The offset of this member in the type, in bytes; -1 if there is none. */
static int place_of(const struct btf *btf, const struct btf_type *type, const char *name)
{
    while (type && kind_of(type) >= BTF_KIND_TYPEDEF && kind_of(type) <= BTF_KIND_RESTRICT)
        type = find_type(btf, 0, NULL, &(uint32_t){type->type});
    if (!type || (kind_of(type) != BTF_KIND_STRUCT && kind_of(type) != BTF_KIND_UNION))
        return -1;
    const struct btf_member *member = (const void *)(type + 1);
    for (size_t i = 0; i < (type->info & 0xffff); i++, member++) {
        int place = (type->info >> 31 ? member->offset & 0xffffff : member->offset) / 8, within = -1;
        if (!strcmp(btf->names + member->name_off, name))
            return place;
        if (!btf->names[member->name_off])
            within = place_of(btf, find_type(btf, 0, NULL, &(uint32_t){member->type}), name);
        if (within >= 0)
            return place + within;
    }
    return -1;
}

/* Load the iterator's program, which writes a struct vma for each map. */
static int load_program(uint32_t function, int start, int end, int flags)
{
    enum { ADD = 0x07, EQUAL = 0x15, LOAD = 0x79, STORE = 0x7b, CALL = 0x85, EXIT = 0x95, SET = 0xb7, COPY = 0xbf };
    const struct bpf_insn instructions[] = {
        {LOAD, 6, 1, 16, 0}, /* struct bpf_iter__task_vma: meta, task, vma */
        {EQUAL, 6, 0, 12, 0},
        {LOAD, 1, 1, 0, 0},
        {LOAD, 1, 1, 0, 0}, /* struct bpf_iter_meta: seq */
        {LOAD, 2, 6, start, 0},
        {STORE, 10, 2, -24, 0},
        {LOAD, 2, 6, end, 0},
        {STORE, 10, 2, -16, 0},
        {LOAD, 2, 6, flags, 0},
        {STORE, 10, 2, -8, 0},
        {COPY, 2, 10, 0, 0},
        {ADD, 2, 0, 0, -24},
        {SET, 3, 0, 0, sizeof(struct vma)},
        {CALL, 0, 0, 0, BPF_FUNC_seq_write},
        {SET, 0, 0, 0, 0},
        {EXIT, 0, 0, 0, 0},
    };
    const union bpf_attr asked = {
        .prog_type = BPF_PROG_TYPE_TRACING,
        .insn_cnt = sizeof instructions / sizeof *instructions,
        .insns = (uintptr_t)instructions,
        .license = (uintptr_t)"Dual MIT/GPL",
        .prog_name = "crckpt_maps",
        .expected_attach_type = BPF_TRACE_ITER,
        .attach_btf_id = function,
    };
    return syscall(SYS_bpf, BPF_PROG_LOAD, &asked, sizeof asked);
}

/* Find the iterator's function and the offsets in the kernel's description of itself, and load the program. */
static int load_iterator(const struct bytes *kernel)
{
    const struct btf_header *header = (const void *)kernel->at;
    uint32_t function, number;
    if (kernel->length < sizeof *header || header->magic != BTF_MAGIC || header->version != 1)
        return -1;
    const char *types = kernel->at + header->hdr_len + header->type_off;
    const struct btf btf = {types, types + header->type_len, kernel->at + header->hdr_len + header->str_off};
    const struct btf_type *vma = find_type(&btf, BTF_KIND_STRUCT, "vm_area_struct", &number);
    int start = place_of(&btf, vma, "vm_start"), end = place_of(&btf, vma, "vm_end");
    int flags = place_of(&btf, vma, "vm_flags");
    /* A kernel that cannot limit it to one process would list the maps of all. */
    int chosen = place_of(&btf, find_type(&btf, BTF_KIND_UNION, "bpf_iter_link_info", &number), "task");
    if (start < 0 || end < 0 || flags < 0 || chosen < 0 ||
        !find_type(&btf, BTF_KIND_FUNC, "bpf_iter_task_vma", &function))
        return -1;
    return load_program(function, start, end, flags);
}

void prepare_for_smaps(const char *table)
{
    struct bytes kernel = {0};
    table_path = table;
    if (*table && read_text(open_to_read(AT_FDCWD, "/sys/kernel/btf/vmlinux"), &kernel))
        program = load_iterator(&kernel);
    release(&kernel);
}

/*
 * Read the iterator to its end. Whether that was possible: if a process has more maps than fit into 32 KiB, it repeats
 * the last ones for ever (task_vma_seq_get_next). Maps come in the order of their addresses.
 */
static int read_iterator(int number, struct bytes *vmas)
{
    for (;;) {
        if (!reserve(vmas, 1 << 16))
            return 0;
        const struct vma *next = (const void *)(vmas->at + vmas->length);
        ssize_t found = syscall(SYS_read, number, next, vmas->room - vmas->length);
        if (found < 0 && errno == EINTR)
            continue;
        if (found < 0 || found % sizeof *next)
            return 0;
        if (!found || (vmas->length && next->start < next[-1].end))
            return vmas->length != 0;
        vmas->length += found;
    }
}

/* List the maps of a process by the iterator. Whether that worked. */
static int list_maps(int pid, struct bytes *vmas)
{
    const uint32_t chosen[3] = {pid};
    const union bpf_attr asked = {.link_create = {.prog_fd = program, .attach_type = BPF_TRACE_ITER,
                                                  .iter_info = (uintptr_t)chosen, .iter_info_len = sizeof chosen}};
    int link = syscall(SYS_bpf, BPF_LINK_CREATE, &asked, sizeof asked);
    const union bpf_attr of = {.iter_create.link_fd = link};
    int number = link < 0 ? -1 : syscall(SYS_bpf, BPF_ITER_CREATE, &of, sizeof of);
    int is_told = number >= 0 && read_iterator(number, vmas);
    if (number >= 0)
        syscall(SYS_close, number);
    if (link >= 0)
        syscall(SYS_close, link);
    return is_told;
}

static int is_map(const char *line)
{
    return (*line >= '0' && *line <= '9') || (*line >= 'a' && *line <= 'f');
}

/* The flags of the map in this line of maps, after those of the lines before; 0 if the two lists differ. */
static uint64_t flags_of(const char *line, const struct bytes *vmas, size_t *next)
{
    struct line map = {0};
    const struct vma *vma = (const void *)(vmas->at + *next);
    if (next_map(&line, &map) && map.start & OF_THE_KERNEL)
        return NONE_TOLD;
    if (*next == vmas->length || vma->start != map.start || vma->end != map.end)
        return 0;
    *next += sizeof *vma;
    return vma->flags;
}

static const char *words_of(uint64_t flags, const struct bytes *table)
{
    const struct meaning *end = (const void *)(table->at + table->length);
    for (const struct meaning *one = (const void *)table->at; one < end; one++)
        if (one->flags == flags)
            return one->words;
    return NULL;
}

/* Make smaps. Whether the table has words for all flags. */
static int make_smaps(const struct bytes *maps, const struct bytes *vmas, const struct bytes *table, struct bytes *smaps)
{
    const char *words = NULL;
    uint64_t flags, before = 0;
    size_t next = 0;
    for (const char *line = maps->at, *after; *line; line = after) {
        after = next_line(line);
        flags = flags_of(line, vmas, &next);
        words = flags && flags == before ? words : words_of(flags, table);
        before = flags;
        if (!flags || !words || !append(smaps, line, after - line) || !append(smaps, VMFLAGS, strlen(VMFLAGS)) ||
            !append(smaps, words, strlen(words)))
            return 0;
    }
    return next == vmas->length;
}

/* Append to the table the words of flags that it lacks, under a lock, so that each entry is complete and unique. */
static void learn(const struct bytes *smaps, const struct bytes *vmas, struct bytes *table, int known)
{
    uint64_t flags = 0;
    size_t next = 0, before = table->length;
    if (before >= MOST * sizeof(struct meaning) || syscall(SYS_flock, known, LOCK_EX | LOCK_NB) != 0 ||
        syscall(SYS_lseek, known, 0l, SEEK_END) != (long)before)
        return;
    for (const char *line = smaps->at, *after; *line; line = after) {
        after = next_line(line);
        if (is_map(line) && !(flags = flags_of(line, vmas, &next)))
            return;
        struct meaning found = {.flags = flags};
        const char *words = line + strlen(VMFLAGS);
        if (!flags || !starts_with(line, VMFLAGS) || after - words >= (long)sizeof found.words || words_of(flags, table))
            continue;
        memcpy(found.words, words, after - words);
        if (!append(table, &found, sizeof found))
            return;
    }
    if (next == vmas->length && !write_all(known, table->at + before, table->length - before))
        syscall(SYS_ftruncate, known, before);
}

static int make_file(const struct bytes *text)
{
    int number = syscall(SYS_memfd_create, "smaps", MFD_CLOEXEC);
    if (number >= 0 && (!write_all(number, text->at, text->length) || syscall(SYS_lseek, number, 0l, SEEK_SET) != 0))
        return close_and_return(number, -1);
    return number;
}

int open_short_smaps(int smaps, int directory, int pid)
{
    static struct bytes vmas, listed, table, text;
    int number = -1;
    int known = program < 0 ? -1 : syscall(SYS_openat, AT_FDCWD, table_path, O_RDWR | O_APPEND | O_CLOEXEC, 0);
    vmas.length = table.length = text.length = 0;
    if (pid > 0 && known >= 0 && read_all(known, &table) && read_text(open_to_read(directory, "maps"), &listed) &&
        table.length % sizeof(struct meaning) == 0 && list_maps(pid, &vmas)) {
        if (make_smaps(&listed, &vmas, &table, &text))
            number = make_file(&text);
        else {
            text.length = 0;
            if (read_all(smaps, &text)) {
                learn(&text, &vmas, &table, known);
                number = make_file(&text);
            }
            if (number < 0)
                syscall(SYS_lseek, smaps, 0l, SEEK_SET);
        }
    }
    if (known >= 0)
        syscall(SYS_close, known);
    return number < 0 ? smaps : (int)close_and_return(smaps, number);
}
