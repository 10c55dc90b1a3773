"""The cluster's configuration files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import psutil

# What a task gets besides the user's variables. Temporary files stay in the node's own folder,
# and MPI talks over the loopback device: there is always one, and nobody else can listen.
_TASK_PROLOG = """\
#!/bin/sh
echo "export TMPDIR={folder}/tmp/$SLURMD_NODENAME"
echo "export OMPI_MCA_btl_sm_backing_directory={folder}/tmp/$SLURMD_NODENAME"
echo "export OMPI_MCA_btl_tcp_if_include=lo"
"""

_SLURM_CONF = """\
# Written by `hvdlab slurm up`: a cluster of {count} nodes that are all this machine.
ClusterName=hvdlab
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}

# All listen on one address, that of this machine's name, and know each other by their own key.
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credentials have expired; the default is two minutes.
AuthInfo=socket={folder}/munge.socket,cred_expire=15

# One folder for all that the daemons write; %n is the node's name.
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/spool/%n.pid
SlurmdLogFile={folder}/log/%n.log
TmpFS={folder}/tmp/%n
TaskProlog={folder}/task_prolog

# No control groups: a container often has none to give. Nodes may claim more cores than there are.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
GresTypes=gpu

# A job of the partition "urgent" takes the nodes of one in "main", which is warned by its own
# --signal and then goes back into the queue.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal

# A class wants to see things happen; a busy machine, to end its own.
KillWait=10
MinJobAge=86400
SlurmdTimeout=30
ReturnToService=1
SchedulerParameters=sched_interval=5,bf_interval=5

{nodes}
PartitionName=main Default=YES Nodes=ALL DefaultTime=60 PriorityTier=1 PreemptMode=REQUEUE \
GraceTime=30
PartitionName=urgent Nodes=ALL DefaultTime=60 PriorityTier=10 PreemptMode=OFF
"""


def node_names(count: int) -> list[str]:
    """node1, node2, ..."""
    return [f"node{number}" for number in range(1, count + 1)]


def write(
    folder: Path,
    user: str,
    address: str,
    ports: list[int],
    cpus: int,
    gpus: int,
    version: tuple[int, int],
) -> None:
    """Write all files into `folder`.

    Args:
        user: who runs the daemons.
        address: where they listen.
        ports: slurmctld's port, then one for each node.
        cpus, gpus: how many each node claims to have.
        version: Slurm's, such as (22, 5).
    """
    host = os.uname().nodename.partition(".")[0]
    memory = psutil.virtual_memory().total >> 20  # MiB
    names = node_names(len(ports) - 1)
    gres = f" Gres=gpu:{gpus}" if gpus else ""
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs={cpus} "
        f"RealMemory={memory}{gres}"
        for name, port in zip(names, ports[1:], strict=True)
    )
    text = _SLURM_CONF.format(
        count=len(names), host=host, address=address, port=ports[0], user=user, folder=folder,
        nodes=nodes,
    )  # fmt: skip
    for name in (
        "log",
        "state",
        "gpus",
        *(f"{top}/{n}" for top in ("spool", "tmp") for n in names),
    ):
        (folder / name).mkdir(parents=True)
    (folder / "slurm.conf").write_text(text)
    if gpus:
        # Slurm wants a device for each GPU and takes the digits of its name as the number.
        for number in range(gpus):
            (folder / "gpus" / f"gpu{number}").symlink_to("/dev/null")
        devices = f"gpu[0-{gpus - 1}]" if gpus > 1 else "gpu0"
        (folder / "gres.conf").write_text(
            f"Name=gpu File={folder}/gpus/{devices} Flags=nvidia_gpu_env\n"
        )
    if version >= (23, 11):
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    prolog = folder / "task_prolog"
    prolog.write_text(_TASK_PROLOG.format(folder=folder))
    prolog.chmod(prolog.stat().st_mode | stat.S_IXUSR)
    key = os.open(folder / "munge.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with open(key, "wb") as file:
        file.write(os.urandom(128))
