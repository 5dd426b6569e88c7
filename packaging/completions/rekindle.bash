# bash completion for rekindle(1)
_rekindle_images() {
  rekindle ls --json 2>/dev/null | grep -o '"reference": *"[^"]*"' | cut -d'"' -f4
}

_rekindle_jobs() {
  rekindle ps "$@" --json 2>/dev/null | grep -oE '"pid": *[0-9]+, *"name": *"[^"]*"' | cut -d'"' -f6
}

_rekindle_groups() {
  rekindle group ls --json 2>/dev/null | grep -o '"reference": *"[^"]*"' | cut -d'"' -f4 | sort -u
}
_rekindle_templates() {
  rekindle template ls --json 2>/dev/null | grep -o '"name": *"[^"]*"' | cut -d'"' -f4
}

_rekindle_functions() {
  rekindle fn ls --json 2>/dev/null | grep -o '"name": *"[^"]*"' | cut -d'"' -f4
}

_rekindle_dependencies() {
  rekindle deps ls --json 2>/dev/null | grep -o '"reference": *"[^"]*"' | cut -d'"' -f4
}

_rekindle() {
  local current previous words cword
  # Image names hold a colon, which bash would take for the end of a word.
  _get_comp_words_by_ref -n : -c current -p previous -w words -i cword 2>/dev/null || {
    current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    words=("${COMP_WORDS[@]}") cword=$COMP_CWORD
  }
  local globals='--store --host --tls-ca --tls-cert --tls-key --no-daemon --json --verbose --help --version'
  local commands='doctor run stop attach wait logs ckpt restore ps top ls inspect diff rm tag working-set prune gc fsck quota stats gpu template group fn deps sim copy export import version'

  local i command=
  for ((i = 1; i < cword; i++)); do
    case ${words[i]} in
      --store | --host | --tls-ca | --tls-cert | --tls-key) ((i++)) ;;
      -*) ;;
      *) command=${words[i]}; break ;;
    esac
  done

  case $previous in
    --store | --criu | --code | --layer | --venv) compopt -o dirnames 2>/dev/null; COMPREPLY=(); return ;;
    --generate) compopt -o dirnames 2>/dev/null; COMPREPLY=(); return ;;
    --log | --pidfile | --tls-* | --model | --plot | --output) compopt -o default 2>/dev/null; COMPREPLY=(); return ;;
  esac

  # Of a copy in a sandbox.
  local copy='--count --net --memory --cpus --processes --env --bind'
  local flags= arguments=
  case $command in
    '') flags=$globals arguments=$commands ;;
    run)
      flags='--name --log --detach --hold --every --restarts --backoff --retry-for --hang --hang-sign --rollback --ignore-path --track-path --keep-removed --keep --image-name --overhead --tcp-close --ignore-mismatch --at-boot --from --resume --stop-on --copy-to'
      if [[ $current != -* ]]; then
        COMPREPLY=($(compgen -c -- "$current"))
        return
      fi
      ;;
    stop) flags='--checkpoint --ckpt --grace' arguments=$(_rekindle_jobs) ;;
    attach) arguments=$(_rekindle_jobs) ;;
    wait) flags='--timeout' arguments=$(_rekindle_jobs --all) ;;
    logs) flags='--follow --tail' arguments=$(_rekindle_jobs --all) ;;
    ckpt)
      flags='--tag --stop --parent --no-parent --replace --tcp-established --tcp-close --label --staging-memory --gpu-lock-timeout --file-contents --ignore-path --track-path'
      [[ $previous == --parent ]] && arguments=$(_rekindle_images) || arguments="$(_rekindle_jobs) $(ps -eo pid= 2>/dev/null)"
      ;;
    restore)
      flags="--detach --pidfile --log --tcp-close --ignore-mismatch --name --gpu-map --into --rollback --ignore-path --dry-run --clone --fill --record-ms --trace --explain $copy"
      case $previous in
        --net) arguments='host none own' ;;
        --rollback) arguments='none append all' ;;
        --into) arguments=$(ps -eo pid= 2>/dev/null) ;;
        --fill) arguments='never idle eager' ;;
        *) arguments=$(_rekindle_images) ;;
      esac
      ;;
    ps) flags='--all' ;;
    top) flags='--interval --once' ;;
    inspect) flags='--objects' arguments=$(_rekindle_images) ;;
    tag) flags='--label --replace' arguments=$(_rekindle_images) ;;
    diff) arguments=$(_rekindle_images) ;;
    rm) flags='--from' arguments=$(_rekindle_images) ;;
    prune)
      flags='--all --keep-last --keep-within --keep-hourly --keep-daily --keep-weekly --keep-monthly --keep-yearly
        --keep-label --groups --dry-run --gc --from'
      arguments=$(_rekindle_images | cut -d: -f1 | sort -u)
      ;;
    gc) flags='--dry-run' ;;
    quota)
      flags='--owner --max --store-max --high-water'
      [[ $previous == --owner ]] && arguments=$(compgen -u)
      ;;
    gpu)
      case ${words[i + 1]} in
        park | swap) flags='--lock-timeout' ;;
        resume) flags='--gpu-map' ;;
        lease) flags='--timeout --pin --hold --with-id --lease-id' ;;
        release) flags='--unpin --lease-id' ;;
      esac
      [[ $previous == gpu ]] && arguments='ps park resume swap lease release' || arguments=$(_rekindle_jobs)
      ;;
    template)
      case ${words[i + 1]} in
        up) flags='--name' arguments=$(_rekindle_images) ;;
        start)
          flags="--name --detach --trace --explain $copy"
          [[ $previous == --net ]] && arguments='host none own' || arguments=$(_rekindle_templates)
          ;;
        down) arguments=$(_rekindle_templates) ;;
      esac
      [[ $previous == template ]] && arguments='up down ls start'
      ;;
    group)
      case ${words[i + 1]} in
        ckpt)
          flags='--member --stop --replace --tcp-established --tcp-close --freeze-limit --staging-memory --label --gpu-lock-timeout --file-contents --ignore-path --track-path'
          [[ $previous == --member ]] && arguments="$(_rekindle_jobs)" || arguments=$(_rekindle_groups)
          ;;
        restore)
          flags='--map --tcp-close --ignore-mismatch --log-dir --rollback --ignore-path'
          [[ $previous == --rollback ]] && arguments='none append all' || arguments=$(_rekindle_groups)
          ;;
        rm) arguments=$(_rekindle_groups) ;;
        resolve) arguments='commit abort' ;;
      esac
      [[ $previous == group ]] && arguments='ckpt restore ls rm resolve'
      ;;
    fn)
      case ${words[i + 1]} in
        deploy)
          flags='--runtime --handler --code --deps --no-image --layer --venv --memory --timeout --start-timeout --env --env-file --provisioned --max-instances --cpus --net --description --replace --force'
          case $previous in
            --runtime) arguments='python nodejs provided' ;;
            --net) arguments='host none own' ;;
            --deps) arguments='auto none' ;;
            *) arguments=$(_rekindle_functions) ;;
          esac
          ;;
        set)
          flags='--memory --timeout --start-timeout --env --env-file --no-env --provisioned --max-instances --cpus --net --description --code --layer --venv --no-layers --force'
          [[ $previous == --net ]] && arguments='host none own' || arguments=$(_rekindle_functions)
          ;;
        invoke)
          flags='--payload --client-context --async --dry-run --log-tail --output'
          arguments=$(_rekindle_functions)
          ;;
        logs) flags='--follow --tail --since' arguments=$(_rekindle_functions) ;;
        rm | stats) arguments=$(_rekindle_functions) ;;
      esac
      [[ $previous == fn ]] && arguments='deploy set invoke ls logs rm stats'
      ;;
    deps)
      case ${words[i + 1]} in
        build)
          flags='--runtime --layer --venv --rebuild'
          [[ $previous == --runtime ]] && arguments='python nodejs'
          ;;
        rm) arguments=$(_rekindle_dependencies) ;;
      esac
      [[ $previous == deps ]] && arguments='build ls rm'
      ;;
    sim)
      flags='--trace --memory --disk --policies --model --print-model --slow-ms --plot --generate --functions --days --seed'
      [[ $previous == --policies ]] && arguments='none fixed snapshot hotswap rekindle' || arguments=$(compgen -f -- "$current")
      ;;
    working-set) [[ $previous == working-set ]] && arguments='drop' || arguments=$(_rekindle_images) ;;
    ls)
      flags='--from'
      [[ $previous == --from ]] && arguments=$(compgen -f -- "$current") || arguments=$(_rekindle_images)
      ;;
    fsck) flags='--read --read-data --repair --from' ;;
    copy)
      flags='--to --from --tag --replace --owner --whole --check --follow --keep'
      [[ $previous == --to || $previous == --from ]] && arguments=$(compgen -f -- "$current") || arguments=$(_rekindle_images)
      ;;
    export)
      flags='--file --since --criu'
      [[ $previous == --file ]] && arguments=$(compgen -f -- "$current") || arguments=$(_rekindle_images)
      ;;
    import)
      flags='--file --criu --tag --parent --replace --owner'
      arguments=$(compgen -f -- "$current")
      ;;
  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$flags $globals" -- "$current"))
  else
    COMPREPLY=($(compgen -W "$arguments" -- "$current"))
    declare -F __ltrim_colon_completions >/dev/null && __ltrim_colon_completions "$current"
  fi
}
complete -F _rekindle rekindle
