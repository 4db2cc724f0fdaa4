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

#include <sys/file.h>

/* linux/bpf.h; the headers of a machine may be older than its kernel. */
#define PROG_LOAD 5
#define LINK_CREATE 28
#define ITER_CREATE 33
#define PROG_TYPE_TRACING 26
#define TRACE_ITER 28
#define SEQ_WRITE 127
/* linux/btf.h */
#define BTF_MAGIC 0xEB9F
enum { INT = 1, ARRAY = 3, STRUCT, UNION, ENUM, TYPEDEF = 8, RESTRICT = 11, FUNC, FUNC_PROTO, VAR, DATASEC };
enum { DECL_TAG = 17, ENUM64 = 19 };

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

struct btf_header {
    uint16_t magic;
    uint8_t version, flags;
    uint32_t length, types, types_length, names, names_length;
};

struct btf_type {
    uint32_t name, info, size;
};

struct btf_member {
    uint32_t name, type, place;
};

struct btf {
    const char *types, *names;
    struct bytes places;
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
    case INT:
    case VAR:
    case DECL_TAG:
        return sizeof *type + 4;
    case ARRAY:
        return sizeof *type + 12;
    case ENUM:
    case FUNC_PROTO:
        return sizeof *type + 8 * parts;
    case STRUCT:
    case UNION:
    case DATASEC:
    case ENUM64:
        return sizeof *type + 12 * parts;
    default:
        return sizeof *type;
    }
}

static const struct btf_type *type_of(const struct btf *btf, uint32_t number)
{
    return (const void *)(btf->types + ((uint32_t *)btf->places.at)[number]);
}

/* The offset of this member in the type, in bytes; -1 if there is none. */
static int place_of(const struct btf *btf, uint32_t number, const char *name)
{
    const struct btf_type *type = type_of(btf, number);
    while (kind_of(type) >= TYPEDEF && kind_of(type) <= RESTRICT)
        type = type_of(btf, type->size);
    if (kind_of(type) != STRUCT && kind_of(type) != UNION)
        return -1;
    const struct btf_member *member = (const void *)(type + 1);
    for (size_t i = 0; i < (type->info & 0xffff); i++, member++) {
        int place = (type->info >> 31 ? member->place & 0xffffff : member->place) / 8;
        if (!strcmp(btf->names + member->name, name))
            return place;
        int within = btf->names[member->name] ? -1 : place_of(btf, member->type, name);
        if (within >= 0)
            return place + within;
    }
    return -1;
}

static uint64_t instruction(uint8_t code, uint8_t to, uint8_t from, int16_t offset, int32_t value)
{
    return code | to << 8 | from << 12 | (uint64_t)(uint16_t)offset << 16 | (uint64_t)(uint32_t)value << 32;
}

/* Load the iterator's program, which writes a struct vma for each map. */
static int load_program(uint32_t function, int start, int end, int flags)
{
    enum { ADD = 0x07, EQUAL = 0x15, LOAD = 0x79, STORE = 0x7b, CALL = 0x85, EXIT = 0x95, SET = 0xb7, COPY = 0xbf };
    const uint64_t instructions[] = {
        instruction(LOAD, 6, 1, 16, 0), /* struct bpf_iter__task_vma: meta, task, vma */
        instruction(EQUAL, 6, 0, 12, 0),
        instruction(LOAD, 1, 1, 0, 0),
        instruction(LOAD, 1, 1, 0, 0), /* struct bpf_iter_meta: seq */
        instruction(LOAD, 2, 6, start, 0),
        instruction(STORE, 10, 2, -24, 0),
        instruction(LOAD, 2, 6, end, 0),
        instruction(STORE, 10, 2, -16, 0),
        instruction(LOAD, 2, 6, flags, 0),
        instruction(STORE, 10, 2, -8, 0),
        instruction(COPY, 2, 10, 0, 0),
        instruction(ADD, 2, 0, 0, -24),
        instruction(SET, 3, 0, 0, sizeof(struct vma)),
        instruction(CALL, 0, 0, 0, SEQ_WRITE),
        instruction(SET, 0, 0, 0, 0),
        instruction(EXIT, 0, 0, 0, 0),
    };
    const struct {
        uint32_t type, count;
        uint64_t instructions, license;
        uint32_t log_level, log_size;
        uint64_t log;
        uint32_t version, flags;
        char name[16];
        uint32_t interface, attach_type, btf, functions_size;
        uint64_t functions;
        uint32_t functions_count, lines_size;
        uint64_t lines;
        uint32_t lines_count, attach_to;
    } asked = {
        .type = PROG_TYPE_TRACING,
        .count = sizeof instructions / sizeof *instructions,
        .instructions = (uintptr_t)instructions,
        .license = (uintptr_t)"Dual MIT/GPL",
        .name = "crckpt_maps",
        .attach_type = TRACE_ITER,
        .attach_to = function,
    };
    return syscall(SYS_bpf, PROG_LOAD, &asked, sizeof asked);
}

/* Find the iterator's function and the offsets in the kernel's description of itself, and load the program. */
static int load_iterator(struct btf *btf, const struct bytes *kernel)
{
    const struct btf_header *header = (const void *)kernel->at;
    if (kernel->length < sizeof *header || header->magic != BTF_MAGIC || header->version != 1)
        return -1;
    btf->types = kernel->at + header->length + header->types;
    btf->names = kernel->at + header->length + header->names;
    uint32_t function = 0, vma = 0, chosen = 0, number = 0;
    for (uint32_t place = 0; place < header->types_length; place += length_of((const void *)(btf->types + place))) {
        const struct btf_type *type = (const void *)(btf->types + place);
        const char *name = btf->names + type->name;
        if (!number++) /* what is of no type */
            btf->places.length = sizeof place;
        if (!append(&btf->places, &place, sizeof place) || kind_of(type) > ENUM64)
            return -1;
        if (kind_of(type) == FUNC && !strcmp(name, "bpf_iter_task_vma"))
            function = number;
        if (kind_of(type) == STRUCT && !strcmp(name, "vm_area_struct"))
            vma = number;
        if (kind_of(type) == UNION && !strcmp(name, "bpf_iter_link_info"))
            chosen = number;
    }
    /* A kernel that cannot limit it to one process would list the maps of all. */
    if (!function || !vma || !chosen || place_of(btf, chosen, "task") < 0)
        return -1;
    int start = place_of(btf, vma, "vm_start"), end = place_of(btf, vma, "vm_end");
    int flags = place_of(btf, vma, "vm_flags");
    return start < 0 || end < 0 || flags < 0 ? -1 : load_program(function, start, end, flags);
}

void prepare_for_smaps(const char *table)
{
    struct bytes kernel = {0};
    struct btf btf = {0};
    int number = *table ? open_to_read(AT_FDCWD, "/sys/kernel/btf/vmlinux") : -1;
    if (number < 0)
        return;
    table_path = table;
    if (reserve(&btf.places, 1 << 20) && read_all(number, &kernel))
        program = load_iterator(&btf, &kernel);
    release(&btf.places);
    release(&kernel);
    syscall(SYS_close, number);
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
    const struct {
        uint32_t program, target, type, flags;
        uint64_t chosen;
        uint32_t chosen_length, rest;
    } asked = {program, 0, TRACE_ITER, 0, (uintptr_t)chosen, sizeof chosen, 0};
    int link = syscall(SYS_bpf, LINK_CREATE, &asked, sizeof asked);
    const uint32_t of[2] = {link};
    int number = link < 0 ? -1 : syscall(SYS_bpf, ITER_CREATE, of, sizeof of);
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
