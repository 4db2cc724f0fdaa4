# bash completion for crckpt

_crckpt() {
    # The words as the user sees them: bash also splits at ':' and '='.
    local rest=${COMP_LINE:0:COMP_POINT} gap word i
    local words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        gap=${rest%%[![:space:]]*}
        rest=${rest:${#gap}}
        word=${COMP_WORDS[i]}
        ((i < COMP_CWORD)) || word=$rest
        if [[ -n $gap || $i == 0 ]]; then words+=("$word"); else words[${#words[@]} - 1]+=$word; fi
        rest=${rest:${#word}}
    done
    local typed=${words[${#words[@]} - 1]} kept=
    [[ $typed != *[:=]* ]] || kept=${typed%"${typed##*[:=]}"}
    # crckpt answers without these quotes: what is to be kept could not be found.
    [[ $kept != *[\\\'\"]* ]] || return

    local lines=()
    mapfile -t lines < <(_CRCKPT_COMPLETE=bash_complete "$1" "${words[@]:1}" 2>/dev/null)
    COMPREPLY=()
    case ${lines[0]} in
    files) compopt -o default ;;
    directories) compopt -o dirnames ;;
    words)
        local line width=0 tab=$'\t'
        for line in "${lines[@]:1}"; do
            word=${line%%"$tab"*}
            word=${word#"$kept"}
            # bash runs what it inserts: a name must stay a name.
            [[ -z $word ]] || printf -v word %q "$word"
            ((${#word} <= width)) || width=${#word}
            COMPREPLY+=("$word")
        done
        if ((${#COMPREPLY[@]} == 1)); then
            [[ ${COMPREPLY[0]} != *[:/=] ]] || compopt -o nospace
        elif [[ $COMP_TYPE != 37 && $COMP_TYPE != 42 ]]; then
            # A list: with descriptions. What bash inserts is the common beginning, which has none.
            # Not for menu-complete, which inserts one after the other.
            compopt -o nosort 2>/dev/null
            for i in "${!COMPREPLY[@]}"; do
                line=${lines[i + 1]}
                [[ -z ${line#*"$tab"} ]] || printf -v "COMPREPLY[$i]" "%-${width}s  (%s)" "${COMPREPLY[i]}" "${line#*"$tab"}"
            done
        fi
        ;;
    esac
} && complete -F _crckpt crckpt
