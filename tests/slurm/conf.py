"""Texts of the test cluster: its slurm.conf, and what the first process of a node does."""

# Of the partition that gives way: longer than any test waits, so that none passes because it ran out.
GRACE_S = 600

CONF = """\
ClusterName=test
SlurmctldHost=hub({subnet}.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=6817
SlurmdPort=6818
AuthType=auth/munge
CredType=cred/munge
# The second half is how long a requeued job waits before it may start again; 120 s when left out.
AuthInfo=socket={root}/munge.sock,cred_expire=5
StateSaveLocation={root}/ctld
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
PlugStackConfig={root}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
PriorityType=priority/basic
GresTypes=gpu
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# Deaths are noticed within seconds.
SlurmdTimeout=5
MessageTimeout=4
TCPTimeout=2
KillWait=3
UnkillableStepTimeout=30
ReturnToService=2
MinJobAge={min_job_age}
CompleteWait=0
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=small Nodes={first} MaxTime=5 State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=four Nodes=n[1-{four}] MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=spot Nodes=ALL MaxTime=60 State=UP PriorityTier=5 PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=20 PreemptMode=OFF
"""

# Jobs reach the controller by themselves: on a node the clients that go through the hub are hidden.
NODE = """\
until [ -e {root}/{name}.net ]; do sleep 0.02; done
hostname {name} && mount --bind {root}/hosts /etc/hosts && mount --bind {root}/empty {root}/bin || exit 1
slurmd -D -N {name} -f {root}/slurm.conf &
while true; do sleep 1; done
"""
