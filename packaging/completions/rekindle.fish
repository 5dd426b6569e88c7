# fish completion for rekindle(1)
function __rekindle_images
    rekindle ls --json 2>/dev/null | string match -ra '"reference": *"([^"]*)"' --groups-only
end

function __rekindle_jobs
    rekindle ps --json 2>/dev/null | string match -ra '"name": *"([^"]*)"' --groups-only
end

function __rekindle_templates
    rekindle template ls --json 2>/dev/null | string match -ra '"name": *"([^"]*)"' --groups-only
end

set -l commands doctor run ckpt restore ps ls inspect diff rm prune gc fsck quota stats gpu template export import version
complete -c rekindle -f
complete -c rekindle -l store -x -a '(__fish_complete_directories)' -d 'Folder of the store'
complete -c rekindle -l host -x -d 'Address of the daemon'
complete -c rekindle -l tls-ca -r -F -d 'Certificates that vouch for the daemon'
complete -c rekindle -l tls-cert -r -F -d 'Our certificate'
complete -c rekindle -l tls-key -r -F -d 'Its key'
complete -c rekindle -l no-daemon -d 'Do the work in this process'
complete -c rekindle -l json -d 'Print JSON'
complete -c rekindle -s v -l verbose -d 'Show the CRIU command lines'
complete -c rekindle -s h -l help -d 'Help with examples'

complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a doctor -d 'Check what Rekindle needs on this machine'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a run -d 'Start a command as a job'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a ckpt -d 'Take an image of a running job'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a restore -d 'Bring a job back from an image'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a ps -d 'List jobs'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a ls -d 'List images'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a inspect -d 'Show one image'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a diff -d 'Compare the memory of two images'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a rm -d 'Remove images'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a prune -d 'Remove images that no rule keeps'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a gc -d 'Free what no image reaches'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a fsck -d 'Check the store'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a quota -d 'Show or set limits of the store'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a stats -d 'Show what the store holds'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a gpu -d 'GPUs and the jobs on them'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a template -d 'Live copies from which others are forked'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a export -d 'Write a CRIU image directory'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a import -d 'Take in a CRIU image directory'
complete -c rekindle -n "not __fish_seen_subcommand_from $commands" -a version -d 'Show versions'

complete -c rekindle -n '__fish_seen_subcommand_from restore inspect diff rm export' -a '(__rekindle_images)'
complete -c rekindle -n '__fish_seen_subcommand_from ckpt' -a '(__rekindle_jobs) (__fish_complete_pids)'

complete -c rekindle -n '__fish_seen_subcommand_from run restore' -l name -x -d 'Name of the job'
complete -c rekindle -n '__fish_seen_subcommand_from run restore' -l log -r -F -d 'File for its output'
complete -c rekindle -n '__fish_seen_subcommand_from run restore' -s d -l detach -d 'Do not wait for the job'
complete -c rekindle -n '__fish_seen_subcommand_from restore' -l pidfile -r -F -d 'Write the PID here'
complete -c rekindle -n '__fish_seen_subcommand_from ckpt restore' -l tcp-close -d 'Close live TCP connections'
complete -c rekindle -n '__fish_seen_subcommand_from ckpt import' -s t -l tag -x -d 'Name of the image'
complete -c rekindle -n '__fish_seen_subcommand_from ckpt' -l stop -d 'Kill the job once the image is safe'
complete -c rekindle -n '__fish_seen_subcommand_from ckpt import' -l parent -x -a '(__rekindle_images)' -d 'Deduplicate against'
complete -c rekindle -n '__fish_seen_subcommand_from ckpt' -l no-parent -d 'Compare with no parent'
complete -c rekindle -n '__fish_seen_subcommand_from ckpt' -l replace -d 'Take over a name that exists'
complete -c rekindle -n '__fish_seen_subcommand_from ckpt' -l tcp-established -d 'Carry live TCP connections'
complete -c rekindle -n '__fish_seen_subcommand_from ckpt' -l label -x -d 'Keep a label'
complete -c rekindle -n '__fish_seen_subcommand_from ckpt' -l staging-memory -x -d 'RAM for the copy of the memory'
complete -c rekindle -n '__fish_seen_subcommand_from ckpt' -l gpu-lock-timeout -x -d 'How long work on a GPU may take to end'
complete -c rekindle -n '__fish_seen_subcommand_from restore gpu' -l gpu-map -x -d 'Onto other GPUs: OLD=NEW,...'
complete -c rekindle -n '__fish_seen_subcommand_from gpu' -a 'ps park resume swap lease release (__rekindle_jobs)'
complete -c rekindle -n '__fish_seen_subcommand_from gpu' -l lock-timeout -x -d 'How long work on the GPU may take to end'
complete -c rekindle -n '__fish_seen_subcommand_from gpu' -l timeout -x -d 'How long to wait for a turn'
complete -c rekindle -n '__fish_seen_subcommand_from gpu' -l pin -d 'Do not park it for others'
complete -c rekindle -n '__fish_seen_subcommand_from gpu' -l hold -d 'Until this command ends'
complete -c rekindle -n '__fish_seen_subcommand_from run' -l hold -d 'The hook holds it at its ready()'
complete -c rekindle -n '__fish_seen_subcommand_from restore' -l clone -d 'As a copy in a sandbox of its own'
complete -c rekindle -n '__fish_seen_subcommand_from restore start' -l trace -r -d 'Write what was done when here'
complete -c rekindle -n '__fish_seen_subcommand_from restore start' -l explain -d 'Tell where the time went'
complete -c rekindle -n '__fish_seen_subcommand_from restore' -l fill -x -a 'never idle eager' -d 'Memory that a clone does not touch'
complete -c rekindle -n '__fish_seen_subcommand_from restore' -l record-ms -x -d 'How long its working set is recorded without the hook'
complete -c rekindle -n '__fish_seen_subcommand_from template; and not __fish_seen_subcommand_from up down ls start' -a 'up down ls start'
complete -c rekindle -n '__fish_seen_subcommand_from template; and __fish_seen_subcommand_from up' -a '(__rekindle_images)'
complete -c rekindle -n '__fish_seen_subcommand_from template; and __fish_seen_subcommand_from down start' -a '(__rekindle_templates)'
complete -c rekindle -n '__fish_seen_subcommand_from template; and __fish_seen_subcommand_from up start' -l name -x -d 'Name of the template or job'
complete -c rekindle -n '__fish_seen_subcommand_from template; and __fish_seen_subcommand_from start' -s d -l detach -d 'Do not wait for the job'
# Of a copy in a sandbox.
for command in restore start
    complete -c rekindle -n "__fish_seen_subcommand_from $command" -l count -x -d 'So many copies'
    complete -c rekindle -n "__fish_seen_subcommand_from $command" -l net -x -a 'host none own' -d 'Network of a copy'
    complete -c rekindle -n "__fish_seen_subcommand_from $command" -l memory -x -d 'Limit of its memory, such as 512M'
    complete -c rekindle -n "__fish_seen_subcommand_from $command" -l cpus -x -d 'Limit of its CPU time'
    complete -c rekindle -n "__fish_seen_subcommand_from $command" -l processes -x -d 'Limit of its processes and threads'
    complete -c rekindle -n "__fish_seen_subcommand_from $command" -l env -x -d 'NAME=VALUE, for a copy with the hook'
    complete -c rekindle -n "__fish_seen_subcommand_from $command" -l bind -r -F -d 'HOST:PATH to be seen in it'
end
complete -c rekindle -n '__fish_seen_subcommand_from restore' -l ignore-mismatch -d 'Try although CPU, kernel or CRIU differ'
complete -c rekindle -n '__fish_seen_subcommand_from ps' -s a -l all -d 'Those that have ended too'
complete -c rekindle -n '__fish_seen_subcommand_from inspect' -l objects -d 'List its objects too'
complete -c rekindle -n '__fish_seen_subcommand_from prune' -a '(__rekindle_images | string replace -r ":.*" "" | sort -u)'
complete -c rekindle -n '__fish_seen_subcommand_from prune' -l all -d 'Of every name'
complete -c rekindle -n '__fish_seen_subcommand_from prune' -l keep-last -x -d 'Keep the newest of each name'
complete -c rekindle -n '__fish_seen_subcommand_from prune' -l keep-within -x -d 'Keep what is not older, such as 7d'
complete -c rekindle -n '__fish_seen_subcommand_from prune' -l keep-label -x -d 'Keep what has this label'
complete -c rekindle -n '__fish_seen_subcommand_from prune' -l gc -d 'Free their space afterwards'
complete -c rekindle -n '__fish_seen_subcommand_from gc prune' -l dry-run -d 'Only say what would go'
complete -c rekindle -n '__fish_seen_subcommand_from quota' -l owner -x -a '(__fish_complete_users)' -d 'User whose images are limited'
complete -c rekindle -n '__fish_seen_subcommand_from quota' -l max -x -d 'What they may take, or none'
complete -c rekindle -n '__fish_seen_subcommand_from quota' -l store-max -x -d 'What the store may take, or none'
complete -c rekindle -n '__fish_seen_subcommand_from quota' -l high-water -x -d 'Share of the file system, or none'
complete -c rekindle -n '__fish_seen_subcommand_from fsck' -l read -d 'Verify every stored byte'
complete -c rekindle -n '__fish_seen_subcommand_from fsck' -l read-data -d 'Verify every stored byte'
complete -c rekindle -n '__fish_seen_subcommand_from fsck' -l repair -d 'Mend what can be mended'
complete -c rekindle -n '__fish_seen_subcommand_from export import' -l criu -x -a '(__fish_complete_directories)' -d 'CRIU image directory'
