#compdef crckpt

_crckpt() {
    local -a lines open closed
    local line word description
    lines=("${(@f)$(_CRCKPT_COMPLETE=zsh_complete ${(Q)words[1]} "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    case $lines[1] in
    files) compset -P '--*='; _files ;;
    directories) compset -P '--*='; _files -/ ;;
    words)
        for line in "${(@)lines[2,-1]}"; do
            word=${line%%$'\t'*} description=${line#*$'\t'}
            line=${word//:/\\:}${description:+:$description}
            if [[ $word == *[:/=] ]]; then open+=("$line"); else closed+=("$line"); fi
        done
        (( ! $#closed )) || _describe -V crckpt closed
        (( ! $#open )) || _describe -V 'more of crckpt' open -S ''
        ;;
    esac
}

# Both as a file of $fpath and by eval.
if [[ ${funcstack[1]} == _crckpt ]]; then _crckpt "$@"; else compdef _crckpt crckpt; fi
