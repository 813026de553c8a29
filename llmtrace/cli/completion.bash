_llmtrace() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" path="" word words
  local index first=1
  # What is helped with is completed as if it were typed itself.
  [[ "${{COMP_WORDS[1]}}" == help ]] && ((COMP_CWORD > 1)) && first=2
  for ((index = first; index < COMP_CWORD; index++)); do
    word="${{path:+$path }}${{COMP_WORDS[index]}}"
    case "$word" in
      {commands}) path="$word" ;;
    esac
  done
  case "$path:$prev" in
{values}
    *) case "$path" in
{words}
    esac ;;
  esac
  # Options are offered only after a dash: without one, files may be meant.
  [[ "$cur" == -* ]] || {{ words=" $words"; words="${{words%% -*}}"; }}
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _llmtrace llmtrace
