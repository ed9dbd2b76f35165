"""Every finding there is, as data: how bad it is, what it means for a deployment, what to do. Of one severity the most
important stand first; docs/findings.md lists the same."""

from __future__ import annotations

from dataclasses import dataclass

BAD = "bad"  # a deployment can't run here as it is
WARN = "warn"  # it would run badly, or not for long
NOTE = "note"  # good to know
SEVERITIES = (BAD, WARN, NOTE)


@dataclass(frozen=True)
class Known:
    """One kind of finding. `severity` is the worst it gets; where nothing asks for what is wrong it is milder."""

    name: str
    severity: str
    title: str
    meaning: str
    remedy: str


_ROWS = (
    # The GPU
    Known(
        "gpu_lost",
        BAD,
        "GPU lost",
        "The driver no longer reaches the GPU; every engine on this node fails until it is back.",
        "Power cycle the node, and look for Xid lines in `dmesg`.",
    ),
    Known(
        "driver_mismatch",
        BAD,
        "Driver and library differ",
        "The loaded kernel module and the libraries are of different versions, usually after an update without a "
        "reboot: no new process can use the GPU.",
        "Reboot the node.",
    ),
    Known(
        "driver_not_running",
        BAD,
        "GPU driver does not run",
        "nvidia-smi is installed, but no driver answers: no engine can use the GPU.",
        "Look for NVRM lines in `dmesg`; after a kernel update rebuild the module (dkms) and reboot.",
    ),
    Known(
        "gpu_failed",
        BAD,
        "GPU can't be asked",
        "NVML fails; an engine would most likely fail in the same way.",
        "Read the line shown as evidence; a reboot reloads driver and library.",
    ),
    Known(
        "gpu_denied",
        BAD,
        "No right to use the GPU",
        "This user may not open the GPU's devices.",
        "Add the user to the groups that own /dev/nvidia* (video, render), and log in again.",
    ),
    Known(
        "gpu_missing",
        BAD,
        "A GPU does not answer",
        "The bus shows it and the driver holds it, but nvidia-smi does not list it: an engine that is to use all GPUs fails or hangs.",
        "Look for Xid lines in `dmesg`; a reboot or a power cycle brings it back, unless it is broken.",
    ),
    # What the deployment is made of
    Known(
        "image_arch",
        BAD,
        "Image for another processor",
        "It would end at once with an exec format error.",
        "Use an image built for this processor (Sparks need arm64).",
    ),
    Known(
        "driver_too_old",
        BAD,
        "Driver too old for the image",
        "The container toolkit refuses to start it, or CUDA fails at its first call.",
        "Update the driver, or use an image built for a CUDA version that the driver supports.",
    ),
    Known(
        "ray_missing",
        BAD,
        "No Ray in the image",
        "The cluster can't be started with it.",
        "Use an image that has Ray, or choose native multi-node.",
    ),
    Known(
        "docker_down",
        BAD,
        "Docker not running",
        "No container can be started or listed; what runs in containers is not seen.",
        "Start it with `sudo systemctl start docker` and look at `journalctl -u docker`.",
    ),
    Known(
        "docker_denied",
        BAD,
        "Docker not allowed",
        "This user may not talk to Docker, so no container can be started, and what runs in containers is not seen.",
        "Add the user to the group docker (`sudo usermod -aG docker USER`) and probe again.",
    ),
    Known(
        "disk_full",
        BAD,
        "Disk full",
        "Logs, compile caches and downloads need room; an engine fails in odd ways without.",
        "Remove images, models or partial downloads that nobody uses.",
    ),
    Known(
        "fabric_not_shared",
        BAD,
        "No common fabric subnet",
        "Ray and NCCL would fall back to the management network or wait for ever.",
        "Give both ends static addresses in one private subnet, e.g. 192.168.100.x/24.",
    ),
    Known(
        "ssh_forwarding_off",
        BAD,
        "SSH does not forward",
        "Nothing behind this node can be reached through it, and engines that listen on its own addresses can't be asked through SSH.",
        "Set `AllowTcpForwarding yes` (and `PermitOpen any`) in /etc/ssh/sshd_config and run `sudo systemctl reload ssh`.",
    ),
    Known(
        "fabric_down",
        BAD,
        "Fabric down",
        "Ranks on other nodes are reached over the slow network, or not at all.",
        "Check the cable between the nodes and the port at both ends.",
    ),
    # Memory and who has it
    Known(
        "memory_held",
        WARN,
        "Memory is taken",
        "A launch that needs the memory asks for consent to stop them first.",
        "Stop what nobody needs; a plan does it in the right order and remembers how to put it back.",
    ),
    Known(
        "units_restart",
        WARN,
        "Units bring it back",
        "systemd starts the containers again when they are stopped alone, and after every reboot.",
        "Stop the units before their containers; disable them, if they must not come back after a reboot.",
    ),
    Known(
        "engine_process",
        WARN,
        "An engine runs as a plain process",
        "Neither a container nor a unit keeps it: nothing brings it back after a reboot, and a launch that needs its "
        "memory or its port has to end it by its process id.",
        "Ask its user; end it, or make a deployment of it.",
    ),
    Known(
        "user_units_restart",
        WARN,
        "The user's own units bring it back",
        "They are units of the user's own systemd: a launch does not stop them, and they bring back what it stops.",
        "`systemctl --user stop UNIT`, and `disable` to keep it from coming back.",
    ),
    Known(
        "boot_jobs_start",
        WARN,
        "Cron or rc.local starts it at boot",
        "No unit shows it and no launch stops it: after a reboot it takes memory and ports before a deployment is back.",
        "Take the line out (`crontab -e`, or the named file as root).",
    ),
    Known(
        "memory_critical",
        WARN,
        "Almost no memory left",
        "On unified memory a node that runs out freezes and may need a power cycle.",
        "Stop something on this node before anything is started.",
    ),
    Known(
        "killed_for_memory",
        WARN,
        "Somebody was killed for memory",
        "The kernel ended a process since the last boot because memory ran out; a deployment of the same size meets "
        "the same end.",
        "Lower the memory share, so that the system keeps 8 GiB or more.",
    ),
    Known(
        "oomd_killed",
        WARN,
        "systemd-oomd killed a unit",
        "systemd-oomd ends whole units or sessions under memory pressure, engines and SSH sessions among them.",
        "Lower the memory share, or turn it off for the engine (ManagedOOMMemoryPressure=auto; or disable "
        "systemd-oomd).",
    ),
    Known(
        "swap_in_use",
        WARN,
        "Swap is in use",
        "Pages of running programs were pushed out: loading and answering become slow and uneven.",
        "Free memory first; `sudo swapoff -a && sudo swapon -a` brings the pages back once there is room.",
    ),
    # The fabric
    Known(
        "fabric_half_up",
        WARN,
        "Half of a link is down",
        "One cable serves both; half of its bandwidth is not used.",
        "Bring the twin's interface up with an address of its own.",
    ),
    Known(
        "twins_in_same_subnet",
        WARN,
        "Twins in one subnet",
        "The kernel answers through either, and RDMA connections fail now and then.",
        "Give each interface a subnet of its own.",
    ),
    Known(
        "twin_without_address",
        WARN,
        "A twin has no address",
        "Without an address it has no RoCE v2 GID, and NCCL can't use it: half of the bandwidth is not used.",
        "Give it an address in a subnet of its own, e.g. 192.168.101.x/24.",
    ),
    Known("fabric_mtu", WARN, "MTU not jumbo", "Every tuned setup uses 9000.", "Set the MTU of both ends to 9000."),
    Known(
        "fabric_mtu_unequal",
        WARN,
        "MTU differs between the ends",
        "Large packets from the side with the larger MTU are lost: connections begin and then hang.",
        "Set the same MTU at both ends, best 9000.",
    ),
    Known(
        "fabric_blocked",
        WARN,
        "Full frames do not get through",
        "Small packets arrive and full ones do not: connections begin and then hang, NCCL above all.",
        "Set the same MTU at both ends and on every switch between, best 9000; check with `ping -M do -s 8972 -I INTERFACE PEER`.",
    ),
    Known(
        "fabric_silent",
        WARN,
        "A rail does not answer",
        "The other end does not answer on this rail: half of the bandwidth, or all of it, is not there.",
        "Check the cable, both interfaces' addresses, and that both ends are in one subnet.",
    ),
    Known(
        "fabric_link_local",
        WARN,
        "Fabric address is link-local",
        "It may change at every reboot; the deployment then does not find its peers.",
        "Give the interface a static private address, e.g. 192.168.100.x/24.",
    ),
    Known(
        "fabric_slow",
        WARN,
        "Fabric link is slow",
        "The link came up at less than the port can do: a wrong cable, or a bad one.",
        "Use a QSFP cable made for 200 Gb/s and plug it in again at both ends.",
    ),
    Known(
        "fabric_speed_unequal",
        WARN,
        "Fabric speeds differ",
        "The slowest link sets the pace of all ranks.",
        "Compare cables and ports of the nodes.",
    ),
    Known(
        "no_rdma",
        WARN,
        "No RDMA device",
        "NCCL falls back to TCP sockets, several times slower.",
        "Check the cable and `ibdev2netdev`.",
    ),
    # Between nodes
    Known(
        "unequal_memory",
        WARN,
        "Unequal memory",
        "All ranks of a tensor-parallel group are sized by the smallest.",
        "Nothing to do if that is meant.",
    ),
    Known(
        "driver_differs",
        WARN,
        "Different drivers",
        "NCCL and CUDA graphs may behave differently.",
        "Bring both to the same driver.",
    ),
    Known(
        "image_differs",
        WARN,
        "One tag, different images",
        "Ray and NCCL refuse to work together when their versions differ.",
        "Copy one node's image to the others.",
    ),
    Known(
        "versions_differ",
        WARN,
        "Different versions of the software",
        "Ranks of one deployment must run the same versions; Ray refuses even another patch level.",
        "Use the same image, or bring the environments to the same versions.",
    ),
    # Software
    Known(
        "image_too_old",
        WARN,
        "Image too old for the model",
        "The engine will most likely say that the architecture is not supported.",
        "Use an image with a newer engine.",
    ),
    Known(
        "image_gpu_code",
        WARN,
        "Image has no code for this GPU",
        "Kernels are missing or are compiled at the first start; some fail with 'no kernel image is available'.",
        "Use an image built for this GPU (12.1a for a Spark).",
    ),
    Known(
        "model_incomplete",
        WARN,
        "Model incomplete",
        "An engine fails in the middle of the load.",
        "Fetch it again; what is there is kept.",
    ),
    # The machine
    Known(
        "exposed",
        WARN,
        "Engine open to the network",
        "Whoever reaches this node can use the model, and read what the API tells.",
        "Listen on 127.0.0.1 (sparkweb reaches it through SSH), start it with --api-key, or close the port.",
    ),
    Known(
        "ray_dashboard_open",
        WARN,
        "Ray dashboard open to the network",
        "Whoever reaches it can run any command on the cluster.",
        "Start Ray with --include-dashboard=false, or with --dashboard-host=127.0.0.1.",
    ),
    Known(
        "container_restarting",
        WARN,
        "Container restarts again and again",
        "It takes memory and lets it go in turns, and its log repeats the same failure.",
        "Read its last lines (`docker logs --tail 50 NAME`), then stop it or mend it.",
    ),
    Known(
        "container_unhealthy",
        WARN,
        "Container unhealthy",
        "It runs and holds its memory, but its own check says that it does not work.",
        "Read its log; restart or stop it.",
    ),
    Known(
        "container_killed",
        WARN,
        "Container was killed for memory",
        "It went over its own limit or the node's memory.",
        "Give it a larger limit, or start it with less.",
    ),
    Known(
        "unit_failed",
        WARN,
        "Unit failed",
        "What it should keep running does not run.",
        "Read `journalctl -u UNIT -e`; `sudo systemctl reset-failed UNIT` clears the mark.",
    ),
    Known(
        "remove_ipc",
        WARN,
        "RemoveIPC trap",
        "When this user's last session ends, logind removes the user's shared memory: an engine that uses it dies some "
        "seconds later.",
        "`loginctl enable-linger USER`, or run the engine as root inside of its container with its own IPC namespace.",
    ),
    Known(
        "clock_skew",
        WARN,
        "Clock is off",
        "Times in its logs are off by as much; certificates and tokens may be refused.",
        "Turn on time synchronisation on the node (timedatectl set-ntp true).",
    ),
    Known(
        "clock_unsynchronized",
        WARN,
        "Nothing keeps the clock right",
        "It will drift: times in logs stop fitting together, and certificates and tokens are refused one day.",
        "`sudo timedatectl set-ntp true`, or install chrony.",
    ),
    Known(
        "gpu_errors",
        WARN,
        "The driver reported errors",
        "An Xid says that a program or the GPU itself failed; some end every engine that uses it.",
        "Look the code up in NVIDIA's list of Xid errors; one that comes again without a change of software is a hardware fault.",
    ),
    Known(
        "mig_on",
        WARN,
        "MIG is on",
        "A process gets one instance at most, with its share of the memory: tensor parallel over instances does not work.",
        "Size the model for one instance, or turn MIG off with `sudo nvidia-smi -i INDEX -mig 0` when nobody uses the GPU.",
    ),
    Known(
        "gpus_mixed",
        WARN,
        "Different GPUs",
        "Tensor parallel is sized by the smallest and paced by the slowest of them, and not every build has code for all.",
        "Use GPUs of one kind for one engine: name them in `--gpus` or CUDA_VISIBLE_DEVICES.",
    ),
    Known(
        "temperature_high",
        WARN,
        "GPU is hot",
        "It slows down to protect itself; tokens per second fall.",
        "Check the air around it, and what else runs.",
    ),
    Known(
        "disk_low",
        WARN,
        "Disk nearly full",
        "The next model, image or compile cache may not fit.",
        "Remove images or models that nobody uses.",
    ),
    Known(
        "docker_missing",
        WARN,
        "Docker not installed",
        "Only plain processes (a virtual environment) can be deployed here.",
        "Install Docker and the NVIDIA container toolkit, or choose the process runtime.",
    ),
    Known(
        "docker_snap",
        WARN,
        "Docker comes as a snap",
        "It sees only homes and its own folders: models elsewhere can't be mounted, and the NVIDIA runtime often does not work.",
        "Remove the snap and install Docker from its own packages; images have to be loaded again.",
    ),
    Known(
        "toolkit_missing",
        WARN,
        "No NVIDIA container toolkit",
        "Docker can't give the GPU to a container.",
        "Install nvidia-container-toolkit and run `sudo nvidia-ctk runtime configure`, then restart Docker.",
    ),
    Known(
        "no_driver",
        WARN,
        "No NVIDIA driver",
        "The command nvidia-smi is missing or finds no driver: only CPU builds run here.",
        "Install the NVIDIA driver, if this machine has a GPU.",
    ),
    Known(
        "limits_low",
        WARN,
        "Low limits of the login",
        "A plain process inherits them: many connections fail with too many open files, RDMA with ENOMEM.",
        "Raise nofile and memlock in /etc/security/limits.d and log in again.",
    ),
    Known(
        "unreadable",
        WARN,
        "Some facts could not be read",
        "What is not known can't be checked before a launch.",
        "The raw output of these sections says why; probe again.",
    ),
    # Good to know
    Known(
        "no_gpu",
        NOTE,
        "No GPU seen",
        "Without one the engine runs on the CPU, if its build can.",
        "Nothing to do if that is meant; else check nvidia-smi on the node.",
    ),
    Known(
        "gpu_memory_unknown",
        NOTE,
        "A GPU does not tell its memory",
        "Whether a model fits can't be worked out for it.",
        "Run `nvidia-smi -q -d MEMORY` on the node; on unified memory nothing is missing.",
    ),
    Known(
        "memory_ours",
        NOTE,
        "A deployment runs here",
        "Another deployment on this node asks to stop it first, unless both fit.",
        "Stop it from its own page when it is no longer wanted.",
    ),
    Known(
        "sudo_password",
        NOTE,
        "Sudo asks for a password",
        "Units can't be stopped and the page cache can't be dropped from here.",
        "Allow the listed commands for this user with NOPASSWD in /etc/sudoers.d, or run them by hand.",
    ),
    Known(
        "ssh_limits_low",
        NOTE,
        "sshd allows little at a time",
        "Steps and log lines wait for each other; several workers at once may be refused.",
        "Raise MaxSessions and MaxStartups in /etc/ssh/sshd_config to their defaults (10 and 10:30:100) or more.",
    ),
    Known(
        "launchers_found",
        NOTE,
        "Launch scripts are there",
        "Somebody can start an engine with them, without sparkweb, or has: the watch will then say what replaced a deployment.",
        "Nothing to do; a deployment made of what they start leaves one place that knows what runs.",
    ),
    Known(
        "cdi_stale",
        NOTE,
        "CDI names files that are gone",
        "Its specification is from an older driver: containers with `--device nvidia.com/gpu=…` don't start; those with "
        "`--gpus all` are not concerned.",
        "`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` after each update of the driver.",
    ),
    Known(
        "no_internet",
        NOTE,
        "No internet",
        "Models and images must come from another node.",
        "Fetch on a node that has internet, and copy over the fabric.",
    ),
    Known(
        "fabric_port_unused",
        NOTE,
        "A fabric port has no link",
        "Another port of this node has one, which is enough: a second cable between the same two nodes adds nothing.",
        "Nothing to do, unless a cable is meant to be there.",
    ),
    Known(
        "ib_tools_absent",
        NOTE,
        "RDMA tools not installed",
        "The kernel's own files were read instead; nothing is missing for a deployment.",
        "Install infiniband-diags and rdma-core to look at the fabric by hand.",
    ),
    Known(
        "cma_empty",
        NOTE,
        "No contiguous memory is reserved",
        "On some kernels RDMA then fails to register memory (ibv_reg_mr: ENOMEM).",
        "If NCCL fails so, boot with `cma=64M` or use the kernel that NVIDIA ships for the Spark.",
    ),
    Known(
        "inside_a_container",
        NOTE,
        "The node is a container itself",
        "Kernel modules, clock and limits belong to its host; Docker inside may be impossible.",
        "Use the process runtime, or set the container up for nesting.",
    ),
)
TABLE: dict[str, Known] = {row.name: row for row in _ROWS}
RANK: dict[str, int] = {name: place for place, name in enumerate(TABLE)}
