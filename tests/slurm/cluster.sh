#!/usr/bin/env bash
# SLURM with one node, for tests: Debian's packages, unpacked in one folder and run from another. Needs no root; changes no system file.
#
#   cluster.sh fetch PACKAGES       downloads and unpacks what is not there yet; exit 3 where apt cannot
#   cluster.sh up PACKAGES DIR      starts it; `. DIR/env` gives a shell its commands
#   cluster.sh down DIR             cancels its jobs and ends it
#
# Two jobs of one core run at once ($CORES). The partition `low` is the default; jobs of `high` preempt its jobs, which then have
# five seconds ($GRACE) before they are killed and queued again.
set -Eeuo pipefail

names=(munge libmunge2 slurmctld slurmd slurm-client slurm-wlm-basic-plugins libhwloc15 liblua5.1-0)

fetch() {
  local unpacked=$1/unpacked
  [ ! -e "$1/complete" ] || return 0
  mkdir -p "$1/archives" "$unpacked"
  (cd "$1/archives" && apt-get -qq download "${names[@]}") || exit 3
  for archive in "$1"/archives/*.deb; do dpkg -x "$archive" "$unpacked"; done
  touch "$1/complete"
}

free_ports() {
  python3 - <<'PYTHON'
import socket

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(one.getsockname()[1] for one in sockets))
PYTHON
}

write_configuration() {
  local unpacked=$1/unpacked dir=$2 libraries user host controller_port node_port
  libraries=$(dirname "$(find "$unpacked" -name slurm-wlm -path '*/lib/*' -type d)")
  user=$(id -un) host=$(hostname -s)
  read -r controller_port node_port < <(free_ports)
  cat >"$dir/env" <<ENV
export SLURM_CONF=$dir/slurm.conf
export LD_LIBRARY_PATH=$libraries:$libraries/slurm-wlm
export PATH=$unpacked/usr/bin:\$PATH
ENV
  cat >"$dir/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$node_port
SlurmUser=$user
SlurmdUser=$user
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
PluginDir=$libraries/slurm-wlm
PlugStackConfig=$dir/plugstack.conf
# no service of the system: no accounting, no control groups, an own key
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/munge.socket
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
# jobs start and stop without delay
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=5
CompleteWait=0
MinJobAge=86400
ReturnToService=2
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
# what no node can run is refused, as on most clusters
EnforcePartLimits=ALL
NodeName=$host NodeAddr=127.0.0.1 CPUs=${CORES:-2} RealMemory=2000
PartitionName=low Nodes=$host Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=${GRACE:-5} MaxTime=60
PartitionName=high Nodes=$host PriorityTier=2 PreemptMode=OFF MaxTime=60
CONF
  printf '%s\n' CgroupPlugin=cgroup/v1 CgroupAutomount=no >"$dir/cgroup.conf"
  : >"$dir/plugstack.conf"
}

# PID_FILE COMMAND...: starts a daemon that outlives this script
background() {
  local file=$1
  shift
  setsid "$@" </dev/null >>"${file%.*}.log" 2>&1 &
  echo $! >"$file"
}

# COMMAND...: waits half a minute for it to succeed
eventually() {
  for _ in {1..300}; do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  echo "this did not succeed within 30 seconds: $*" >&2
  return 1
}

is_idle() { [ "$(sinfo --noheader --partition=low --format=%t)" = idle ]; }
is_empty() { [ -z "$(squeue --noheader)" ]; }

up() {
  local packages dir
  packages=$(realpath -m "$1") dir=$(realpath -m "$2")
  fetch "$packages"
  mkdir -p "$dir"/{state,spool}
  chmod 755 "$dir"
  write_configuration "$packages" "$dir"
  . "$dir/env"
  PATH=$packages/unpacked/usr/sbin:$PATH
  (umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")
  trap 'down "$dir"' ERR
  background "$dir/munged.pid" munged --foreground --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" \
    --pid-file="$dir/munged.own" --log-file="$dir/munged.log" --seed-file="$dir/munge.seed"
  eventually munge --no-input --socket="$dir/munge.socket"
  background "$dir/controller.pid" slurmctld-wlm -D -c
  eventually scontrol ping
  background "$dir/node.pid" slurmd-wlm -D -c -d "$packages/unpacked/usr/sbin/slurmstepd-wlm"
  eventually is_idle
}

down() {
  local dir pid
  dir=$(realpath -m "$1")
  . "$dir/env"
  scancel --signal=KILL --full --user="$(id -un)" 2>/dev/null || true
  scancel --user="$(id -un)" 2>/dev/null || true
  eventually is_empty || true
  for name in node controller munged; do
    [ -e "$dir/$name.pid" ] || continue
    pid=$(cat "$dir/$name.pid")
    kill "$pid" 2>/dev/null || continue
    eventually bash -c "! kill -0 $pid" || kill -KILL "$pid"
  done
}

case ${1-} in
  fetch) fetch "$(realpath -m "$2")" ;;
  up) up "$2" "$3" ;;
  down) down "$2" ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
