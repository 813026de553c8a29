function __llmtrace_at
    set -l path
    set -l words (commandline -opc)[2..-1]
    # What is helped with is completed as if it were typed itself.
    test "$words[1]" = help; and set -e words[1]
    for word in $words
        if contains -- (string join ' ' $path $word) {commands}
            set -a path $word
        end
    end
    test "$path" = "$argv[1]"
end
{lines}
