function __llmtrace_at
    set -l path
    for word in (commandline -opc)[2..-1]
        if contains -- (string join ' ' $path $word) {commands}
            set -a path $word
        end
    end
    test "$path" = "$argv[1]"
end
{lines}
