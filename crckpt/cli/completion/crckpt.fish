# fish completion for crckpt

function __crckpt_complete
    set -l words (commandline -opc)
    set -l program $words[1]
    set -e words[1]
    set -l typed (commandline -ct)
    set -q typed[1]; or set typed ""
    set -l lines (_CRCKPT_COMPLETE=fish_complete $program $words $typed 2>/dev/null)
    switch "$lines[1]"
        case files
            __fish_complete_path $typed
        case directories
            __fish_complete_directories $typed
        case words
            set -e lines[1]
            string join \n -- $lines
    end
end

complete --command crckpt --no-files --arguments "(__crckpt_complete)"
