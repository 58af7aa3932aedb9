#!/usr/bin/env bash
# Run a command on the login node of a SLURM cluster that lasts as long as the command:
#   tests/cluster/slurm.sh FOLDER COMMAND [ARGUMENT ...]
# Its nodes, gpu1 and gpu2, are this host under other names, and have 8 processors, 100 GB and 4 GPUs as far as the
# scheduler knows. All of it runs in namespaces of its own, with its own /etc/slurm and /etc/hosts: it changes nothing of
# the machine's, and ends with its last process when the command does, or when the caller is killed. What SLURM writes
# is in FOLDER. Needs root, and Debian's packages slurmctld, slurmd and slurm-client.
set -euo pipefail
if [ "$1" != --inside ]; then
    exec setpriv --pdeathsig KILL \
        unshare --mount --pid --uts --fork --kill-child --mount-proc "$0" --inside "$@"
fi
folder=$(realpath "$2")
shift 2

hostname login
port=$((20000 + RANDOM % 10000))
mkdir -p "$folder/etc"
printf '127.0.0.%s\n' '1 localhost login' '2 gpu1' '3 gpu2' >"$folder/hosts"
# For each GPU a device, of which SLURM asks only that it exists.
printf 'Name=gpu File=/dev/%s\n' null zero full random >"$folder/etc/gres.conf"
cat >"$folder/etc/slurm.conf" <<CONFIGURATION
ClusterName=test
SlurmctldHost=login
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
MinJobAge=86400
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=gpu1 Port=$((port + 1)) CPUs=8 RealMemory=100000 Gres=gpu:4
NodeName=gpu2 Port=$((port + 2)) CPUs=8 RealMemory=100000 Gres=gpu:4
PartitionName=all Nodes=ALL Default=YES
CONFIGURATION
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/etc" /etc/slurm

mkdir -p "$folder/state"
slurmctld -D -c >"$folder/slurmctld.log" 2>&1 </dev/null &
for node in gpu1 gpu2; do
    mkdir -p "$folder/spool/$node"
    unshare --uts bash -c "hostname $node; exec slurmd -D -N $node" >"$folder/$node.log" 2>&1 </dev/null &
done
until [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 2 ]; do
    if [ "$(jobs -rp | wc -l)" != 3 ]; then
        tail -n 20 "$folder"/*.log >&2
        exit 1
    fi
    sleep 0.1
done
"$@"
