"""Why something did not work: one table. A reason decides whether we try again, what the user reads and what to do
next.

Group, retry class and delays follow one rule: a program tries again by itself only where trying again can help.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TextIO

NEVER = "never"  # trying again gives the same answer until a person changes something
TRANSIENT = "transient"  # tried again after each of `delays_s`, with jitter
ONCE = "once"  # one more try, then stop with a diagnosis bundle
ONCE_AFTER_CLEANUP = "once_after_cleanup"  # one more try, after everything of ours on the nodes is gone
RESUME = "resume"  # goes on where it stopped until no progress for 5 minutes
QUEUE = "queue"  # waits in line
POLICY = "policy"  # the deployment's relaunch policy decides, for the whole group only
CLEANUP = "cleanup"  # cleaning up goes on, with an alarm

RETRY_CLASSES = (NEVER, TRANSIENT, ONCE, ONCE_AFTER_CLEANUP, RESUME, QUEUE, POLICY, CLEANUP)
TRANSIENT_DELAYS_S = (5.0, 20.0, 60.0)
NO_PROGRESS_S = 300.0  # a `resume` reason gives up after this many seconds without a new byte


@dataclass(frozen=True)
class Reason:
    """`sentence` says what happened, `remedy` what to do next; both are complete English sentences for the user."""

    name: str
    group: str
    retry: str
    title: str
    sentence: str
    remedy: str
    aliases: tuple[str, ...] = ()
    delays_s: tuple[float, ...] = ()

    @property
    def next_action(self) -> str:
        return self.remedy

    @property
    def retries(self) -> int:
        """How many times a program may try again by itself (for `resume` and `queue`: as long as it moves, counted as
        0)."""
        return {TRANSIENT: len(self.delays_s), ONCE: 1, ONCE_AFTER_CLEANUP: 1}.get(self.retry, 0)


class UnknownReason(KeyError):
    """A name that stands neither in the table nor among its aliases."""


def _group(group: str, retry: str, *rows: tuple[str, str, str, str, str]) -> list[Reason]:
    """Rows are (name, title, sentence, remedy, "alias alias")."""
    delays = TRANSIENT_DELAYS_S if retry == TRANSIENT else ()
    return [
        Reason(name, group, retry, title, sentence, remedy, tuple(aliases.split()), delays)
        for name, title, sentence, remedy, aliases in rows
    ]


_ACCESS = [
    *_group(
        "access",
        NEVER,
        (
            "ssh_auth",
            "SSH login refused",
            "The node answered, but does not accept our key for this user.",
            "Add the public key shown on the credential to this user's ~/.ssh/authorized_keys on the node, or choose "
            "another "
            "user or credential.",
            "key_not_authorised key_not_authorised_password_possible too_many_keys permission_denied_publickey "
            "key_permissions key_passphrase account_closed",
        ),
        (
            "host_key_changed",
            "Host key changed",
            "The node shows another host key than the one that was confirmed.",
            "If the node was reinstalled, compare the new fingerprint on its console and confirm it; otherwise treat "
            "it as an attack.",
            "changed_host_key",
        ),
        (
            "host_key_unknown",
            "Host key not confirmed",
            "Nobody has confirmed this node's host key yet.",
            "Compare the fingerprint with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the node and "
            "confirm it.",
            "unknown_host_key",
        ),
        (
            "ssh_incompatible",
            "SSH versions do not fit",
            "The node and we have no SSH algorithm in common.",
            "Update the SSH server on the node; an old one offers only what is no longer safe.",
            "",
        ),
        (
            "not_ssh",
            "Not an SSH server",
            "Something answers on this port, but it does not speak SSH.",
            "Correct the port; SSH listens on 22 unless somebody chose another.",
            "",
        ),
        (
            "bad_answer",
            "Answer can't be used",
            "The node answered with more than can be read, or with something that is no answer to what was asked.",
            "Log in on the node and run the same command by hand; a program that was replaced there, or a login script "
            "that never stops printing, is the usual cause.",
            "shell_not_clean foreign_shell",
        ),
        (
            "sudo_denied",
            "No sudo rights",
            "The command needs root, and sudo would not run it without asking for a password.",
            "Allow the listed commands for this user with NOPASSWD in /etc/sudoers.d, or run them by hand.",
            "sudo_password not_in_sudoers sudo_not_allowed no_new_privileges",
        ),
        (
            "password_gone",
            "Password no longer there",
            "The password that was given for this run has been forgotten: it is kept for minutes only, and never longer "
            "than the run.",
            "Start the run again and type the password again.",
            "",
        ),
    ),
    *_group(
        "access",
        TRANSIENT,
        (
            "ssh_timeout",
            "SSH timed out",
            "The node did not answer in time: it is down, or a firewall drops our packets.",
            "Check that the node is powered, that the address is right and that port 22 is open from here.",
            "timeout connection_timed_out connection_dropped",
        ),
        (
            "ssh_refused",
            "SSH refused",
            "The host is up, but nothing listens on its SSH port.",
            "Start sshd on the node, or correct the port.",
            "refused connection_refused",
        ),
        (
            "no_route",
            "No route to the node",
            "The network says that there is no way to this address.",
            "Check the address, the VPN and the routing; a jump host may be needed.",
            "network_unreachable",
        ),
        (
            "dns",
            "Name does not resolve",
            "The node's host name is not known to the name server.",
            "Correct the name, or use the IP address.",
            "name_not_resolved",
        ),
        (
            "jump_unreachable",
            "Jump host not reachable",
            "The jump host in front of this node did not answer.",
            "Bring the jump host back first; the node behind it was not asked.",
            "",
        ),
        (
            "jump_refused",
            "Jump host refuses to forward",
            "The jump host would not open a connection to the node for us.",
            "Set AllowTcpForwarding yes on the jump host, and check that it can reach the node's address and port.",
            "forwarding_refused",
        ),
        (
            "ssh_busy",
            "SSH answers too late",
            "The node takes the connection but sshd shows no banner in time: it is overloaded (often out of memory) "
            "or still starting.",
            "Wait a minute; if it stays so, the node needs a power cycle. Do not restart in a loop.",
            "overloaded_or_booting banner_timeout closed_before_login too_many_sessions",
        ),
    ),
]

_HOST = _group(
    "host",
    NEVER,
    (
        "docker_missing",
        "Docker not installed",
        "There is no docker command on this node.",
        "Install Docker and the NVIDIA container toolkit, or choose the process runtime.",
        "no_docker",
    ),
    (
        "docker_denied",
        "Docker not allowed",
        "This user may not talk to the Docker daemon.",
        "Add the user to the group docker (`sudo usermod -aG docker USER`) and log in again.",
        "docker_socket_permission docker_permission permission",
    ),
    (
        "docker_down",
        "Docker not running",
        "Docker is installed, but its daemon does not answer.",
        "Start it with `sudo systemctl start docker` and look at `journalctl -u docker`.",
        "daemon_not_running docker_not_running",
    ),
    (
        "toolkit_missing",
        "Container toolkit missing",
        "Docker cannot give the GPU to a container: the NVIDIA toolkit is missing.",
        "Install nvidia-container-toolkit and run `sudo nvidia-ctk runtime configure`, then restart Docker.",
        "no_gpu_runtime",
    ),
    (
        "no_driver",
        "No NVIDIA driver",
        "The command nvidia-smi is missing or finds no driver.",
        "Install the NVIDIA driver, or start the container with --gpus all.",
        "driver_missing no_gpu driver_not_loaded",
    ),
    (
        "gpu_lost",
        "GPU lost",
        "The driver no longer reaches the GPU.",
        "Power cycle the node; look for Xid lines in `dmesg`.",
        "gpu_fallen_off_the_bus ecc_error",
    ),
    (
        "disk_full",
        "Disk full",
        "There is no space left on the node's disk.",
        "Free space where the file was going (old images, old models, partial downloads) and start again; what was "
        "copied is kept.",
        "disk_full_on_target no_space_left",
    ),
    (
        "permission_denied",
        "No right to write",
        "The user on the node may not write there.",
        "Give the folder to the user (`sudo chown -R USER FOLDER`); containers often leave files that belong to root.",
        "permission_denied_on_target",
    ),
    (
        "ipc_removed",
        "Shared memory was taken away",
        "The node removed this user's shared memory and semaphores when its last session ended (RemoveIPC).",
        "Run `loginctl enable-linger USER` on the node, or start the container without --ipc=host and with --shm-size.",
        "",
    ),
    (
        "program_missing",
        "Program missing",
        "A program that this step needs is not installed on the node.",
        "Install it on the node named in the evidence.",
        "rsync_missing_on_target rsync_missing command_not_found nvcc_missing compiler_missing unit_missing",
    ),
    (
        "image_missing",
        "Image not on the node",
        "The container image is not on this node.",
        "Pull it where there is internet and distribute it, or correct the image's name.",
        "no_such_image",
    ),
    (
        "changed_since",
        "Changed by somebody else since",
        "A file that is to be put back is not as sparkweb had left it, so it was not touched.",
        "Look at the file and at its old content, whose place on the node the last line names, and settle it by hand.",
        "",
    ),
    (
        "clock_skew",
        "Clock is off",
        "The node's clock differs from ours.",
        "Turn on time synchronisation on the node (timedatectl set-ntp true).",
        "",
    ),
    (
        "driver_mismatch",
        "Driver and library differ",
        "The loaded kernel module and the NVIDIA libraries are of different versions, usually after an update "
        "without a reboot.",
        "Reboot the node.",
        "driver_library_mismatch driver_combination",
    ),
    (
        "driver_too_old",
        "Driver too old",
        "The image needs a newer NVIDIA driver than the node has.",
        "Update the driver, or use an image built for the CUDA version that the driver supports.",
        "driver_too_old_for_image ptx_too_new compat_not_supported",
    ),
)

_CONFLICT = [
    *_group(
        "conflict",
        QUEUE,
        (
            "node_reserved",
            "Node in use by another run",
            "Another run holds this node.",
            "Wait: it starts by itself when the other run ends, or cancel that run.",
            "",
        ),
    ),
    *_group(
        "conflict",
        NEVER,
        (
            "foreign_installation",
            "Another installation works there",
            "Another installation of sparkweb works on this node.",
            "Wait until it is done and start again. When it is gone for good, an editor removes its lock: on the node's page, "
            "under *Locks of other installations*.",
            "",
        ),
        (
            "port_busy",
            "Port in use",
            "Another program already listens on this port.",
            "See whose it is first: the node's page lists its listening ports, `sudo ss -ltnp` there names the program. "
            "A deployment of yours has its own Stop; for anything else ask its owner, or choose another port.",
            "port_in_use address_in_use",
        ),
        (
            "foreign_container",
            "A container that is not ours",
            "A container with this name exists and was not started by this deployment.",
            "Choose another container name, or ask its owner to rename or remove it.",
            "",
        ),
        (
            "other_deployment",
            "Another deployment is here",
            "Another deployment of this sparkweb has what this one needs on the node.",
            "Stop that deployment first, or choose other nodes.",
            "",
        ),
        (
            "ray_already_running",
            "Ray already runs here",
            "A Ray cluster already runs on this address.",
            "Stop the other deployment first, or attach to its cluster. `ray stop` ends every Ray process of the "
            "node, also of others.",
            "",
        ),
    ),
]

_MEMORY = _group(
    "memory",
    NEVER,
    (
        "does_not_fit",
        "Does not fit",
        "By the arithmetic of the plan, this model does not fit on these nodes.",
        "Use the largest setting that fits, which the plan offers, or more nodes.",
        "",
    ),
    (
        "memory_not_released",
        "Memory did not come back",
        "What was stopped is gone, but its memory is still not free.",
        "Look for processes that are left over; a reboot of the node frees it for certain.",
        "memory_changed_while_profiling memory_unbalanced",
    ),
    (
        "oom_gpu",
        "Out of GPU memory",
        "The GPU had no memory left for what the engine asked.",
        "While loading weights: use more GPUs or a smaller quantisation. Later: lower the memory share, the context "
        "length or the batch.",
        "cuda_oom decrease_mem_fraction",
    ),
    (
        "oom_host",
        "Killed for memory",
        "The kernel ended a process because the node ran out of memory.",
        "Lower the memory share so that the system keeps some, or stop what else runs on the node.",
        "oom_killed kernel_oom oomd",
    ),
    (
        "ray_oom_killer",
        "Ray killed a worker for memory",
        "Ray's own memory monitor ended a worker; on unified memory its threshold is reached in normal operation.",
        "Set RAY_memory_monitor_refresh_ms=0 on every node, or lower the memory share.",
        "",
    ),
    (
        "os_floor_reached",
        "System memory floor reached",
        "The memory left for the system fell below the floor of this deployment.",
        "Lower the memory share or the context length.",
        "",
    ),
    (
        "free_below_requested",
        "Less memory free than asked",
        "The engine wants a larger share of the memory than is free: something else holds it, or it has not come "
        "back yet.",
        "Stop what holds the memory, drop the page cache, or lower --gpu-memory-utilization to the share that is free.",
        "",
    ),
    (
        "shm_too_small",
        "Shared memory too small",
        "The container's shared memory (/dev/shm) is full; this is neither disk nor RAM.",
        "Start the container with --ipc=host or --shm-size 16g.",
        "",
    ),
)

_DATA = [
    *_group(
        "data",
        NEVER,
        (
            "hub_auth",
            "Hub wants a token",
            "The model hub did not accept the request without a valid token.",
            "Store a valid HF_TOKEN for this deployment.",
            "needs_token",
        ),
        (
            "hub_gated",
            "Licence not accepted",
            "The token is valid, but its account has no access to this model.",
            "Open the model's page, accept its licence or ask for access, and start again.",
            "needs_license",
        ),
        (
            "hub_missing",
            "Model not on the hub",
            "The hub knows no model, revision or file of that name.",
            "Correct the model's name or revision.",
            "",
        ),
        (
            "hub_offline",
            "Offline and not in the cache",
            "The hub is switched off (HF_HUB_OFFLINE=1) and the files are not in this node's cache.",
            "Copy the model to this node first, or point the cache to where it is.",
            "offline_not_cached",
        ),
        (
            "hf_transfer_missing",
            "hf_transfer not installed",
            "HF_HUB_ENABLE_HF_TRANSFER=1 is set, but the image lacks that package.",
            "Unset HF_HUB_ENABLE_HF_TRANSFER.",
            "",
        ),
        (
            "model_path_missing",
            "Model not on the node",
            "The model's folder, or a file of it, is not on this node.",
            "Fetch or copy the model to this node, or correct the path.",
            "model_missing tokenizer_missing source_missing mount_source_missing",
        ),
        (
            "manifest_mismatch",
            "Files differ",
            "Size or hash of a model file is not what it should be.",
            "The bad files are copied again once; if they differ again, check the disk.",
            "wrong_size file_missing",
        ),
        (
            "image_not_found",
            "Image not in the registry",
            "The registry knows no image of that name or tag.",
            "Correct the image's name and tag; private registries need a login.",
            "manifest_unknown",
        ),
    ),
    *_group(
        "data",
        RESUME,
        (
            "hub_unreachable",
            "Hub not reachable",
            "This node has no way to the model hub.",
            "Fetch the model on a node with internet and copy it over, or set a proxy.",
            "no_internet hub_storage_error hub_server_error",
        ),
        (
            "hub_rate_limited",
            "Hub rate limit",
            "The hub asks us to slow down.",
            "It goes on by itself after the wait; a token raises the limit, and one download copied over the fabric "
            "needs fewer requests.",
            "rate_limited",
        ),
        (
            "copy_interrupted",
            "Copy interrupted",
            "The connection broke while files were being copied; what arrived is kept.",
            "It resumes by itself; if it breaks again, check the link between the nodes.",
            "connection_lost interrupted partial_copy",
        ),
        (
            "image_pull",
            "Image pull failed",
            "The container image could not be pulled.",
            "Check the registry, the login and the disk; layers that arrived are kept.",
            "registry_login",
        ),
    ),
]

_CLUSTER = [
    *_group(
        "cluster",
        ONCE_AFTER_CLEANUP,
        (
            "ray_join_timeout",
            "Node did not join Ray",
            "Not all nodes joined the Ray cluster in time.",
            "Check that the worker reaches the head's fabric address and port, and that no old Ray runs there.",
            "",
        ),
        (
            "ray_not_running",
            "No Ray cluster",
            "Ray does not run on this node, or not at the address that was asked.",
            "Start the head first, or give its address with RAY_ADDRESS.",
            "no_cluster ray_no_cluster",
        ),
        (
            "ray_local_instance",
            "Joined no cluster",
            "The engine started a Ray of its own instead of joining the cluster, so it sees only its own GPU.",
            "Set RAY_ADDRESS (or --address) to the head's fabric address for the engine.",
            "local_ray",
        ),
        (
            "ray_placement_wait",
            "Waiting for GPUs",
            "Ray has no place for all ranks: the GPUs or addresses that were asked for are not free in the cluster.",
            "Compare `ray status` with the plan: number of GPUs, and node:ADDRESS being exactly the fabric address.",
            "not_enough_gpus_in_ray ray_without_gpu",
        ),
        (
            "ray_node_dead",
            "Ray node died",
            "A node left the Ray cluster; the engine cannot recover from that.",
            "Check that node (memory, SSH, network), restart Ray there, then relaunch the whole deployment.",
            "node_marked_dead",
        ),
        (
            "nccl_init",
            "GPUs cannot talk to each other",
            "NCCL could not set up the communication between the ranks.",
            "Check NCCL_SOCKET_IFNAME and NCCL_IB_HCA on every node, and read the first NCCL WARN line of each rank "
            "(NCCL_DEBUG=INFO).",
            "gloo_connect nccl_no_interface wrong_gid_index rdma_memory rdma_completion_error wrong_interface",
        ),
        (
            "nccl_init_hang",
            "Ranks wait for each other",
            "The ranks have begun to set up their communication and never came to its end; no weights were read.",
            "Every rank must advertise an address that the others reach: SGLANG_HOST_IP, NCCL_SOCKET_IFNAME and "
            "GLOO_SOCKET_IFNAME per node, as the plan sets them unless the environment says otherwise. If they are right, test "
            "the fabric, try once with NCCL_IB_DISABLE=1 (slow, but it tells whether RDMA is what hangs), or serve the "
            "model with vLLM.",
            "",
        ),
        (
            "port_race",
            "Port taken in between",
            "The port was free in the preflight and taken at the start.",
            "It is tried once more with a fresh port.",
            "",
        ),
    ),
    *_group(
        "cluster",
        NEVER,
        (
            "nccl_socket_fallback",
            "Slow path: TCP instead of RDMA",
            "NCCL found no usable RDMA device and talks over TCP sockets; it works, but slowly.",
            "Give the container --device /dev/infiniband, --cap-add IPC_LOCK and --ulimit memlock=-1, and check the "
            "spelling of NCCL_IB_HCA.",
            "no_infiniband_device_in_container no_matching_hca rdma_disabled",
        ),
        (
            "ray_wrong_ip",
            "Ray uses the wrong address",
            "A node joined Ray with another address than its fabric address.",
            "Start Ray with --node-ip-address and set VLLM_HOST_IP to the fabric address on every node.",
            "",
        ),
        (
            "ray_version_mismatch",
            "Ray versions differ",
            "Head and worker run different versions of Ray or Python; even the patch level must match.",
            "Use the same image (same digest) on all nodes.",
            "",
        ),
        (
            "fabric_down",
            "Fabric down",
            "A fabric port that this deployment needs has no link.",
            "Check the cable and the port at both ends.",
            "link_down",
        ),
        (
            "fabric_reverted",
            "The node put its old network back",
            "After the change of its network the node was not told in time to keep it, so it went back to the old one by "
            "itself.",
            "Compare the addresses with the cables and with the way on which the node is reached, then try again.",
            "",
        ),
        (
            "fabric_packets",
            "Full packets do not get through",
            "Packets as large as the MTU do not reach the other node undivided: connections would begin and then hang.",
            "Set the same MTU at both ends and on whatever stands between them, and check that each cable joins the "
            "ports that share a subnet.",
            "",
        ),
        (
            "fabric_miswired",
            "Ports not connected to each other",
            "The two RDMA ports that should talk are in different subnets: they are not cabled to each other, or the "
            "wrong device was chosen.",
            "Pin NCCL_IB_HCA and NCCL_SOCKET_IFNAME to the port of the right link on each node, or re-cable. Longer "
            "time-outs do not help.",
            "ports_not_connected_or_wrong_hca",
        ),
    ),
]

_ENGINE = [
    *_group(
        "engine",
        NEVER,
        (
            "bad_args",
            "Engine refuses an argument",
            "The engine does not know an argument, or refuses its value.",
            "Remove or correct the argument named in the evidence; the recipe may be for another version of the image.",
            "unknown_argument max_len_exceeds_model trust_remote_code dtype_unsupported not_enough_gpus usage_error device_missing",
        ),
        (
            "unsupported_model",
            "Model not supported",
            "This version of the engine does not know the model's architecture.",
            "Use an image with a newer engine (and transformers).",
            "tokenizer_unsupported quantization_unknown weights_unknown",
        ),
        (
            "image_arch",
            "Image for another processor",
            "The image is built for another processor architecture than this node's.",
            "Use an image for this node (Sparks need arm64).",
            "exec_format_error no_matching_manifest",
        ),
        (
            "image_too_old",
            "Image too old",
            "The image's software is too old for this model or this GPU.",
            "Use a newer image.",
            "ray_missing",
        ),
        (
            "image_broken",
            "Image does not fit together",
            "A library or module inside the image is missing, or does not belong to the others.",
            "Use the image as it was published; a package that was added to it later is the usual cause.",
            "library_missing undefined_symbol kernel_library_unusable operator_missing module_missing",
        ),
        (
            "kernel_unsupported",
            "GPU code missing in the image",
            "The image has no GPU code for this GPU.",
            "Use an image built for this GPU (sm_121 for the Spark).",
            "no_kernel_image quantization_unsupported no_attention_backend no_matching_kernel kernel_out_of_resources",
        ),
        (
            "ptxas_too_old",
            "ptxas too old",
            "The compiler inside the image does not know this GPU. The model is not the problem.",
            "Set TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas (CUDA 13 or newer in the image), or use an image built "
            "for the Spark.",
            "nvcc_too_old",
        ),
        (
            "container_killed",
            "Container ended from outside",
            "The engine's container was stopped or killed: its exit code is that of a signal, not the engine's own.",
            "Find out who did: `docker events` on the node, another person or installation, a unit. Then relaunch.",
            "",
        ),
        (
            "kv_too_small",
            "No room for the context",
            "After the weights, too little memory is left for the KV cache of one request.",
            "Lower the context length to the engine's estimate, use an fp8 KV cache, or raise the memory share.",
            "increase_mem_fraction max_len_exceeds_kv",
        ),
        (
            "tp_indivisible",
            "Tensor parallel does not divide",
            "The model's attention heads cannot be split evenly over that many GPUs.",
            "Choose a tensor parallel size that divides the number of heads, or pipeline parallel.",
            "weights_indivisible",
        ),
    ),
    *_group(
        "engine",
        ONCE,
        (
            "load_stalled",
            "Load stalled",
            "The engine runs, but nothing has moved for longer than usual.",
            "Look at the last line of each rank; relaunch, and if it stalls again, read the diagnosis bundle.",
            "",
        ),
        (
            "http_never_ready",
            "API never ready",
            "The engine runs, but its API did not become ready in time.",
            "Read the engine's log; raise VLLM_ENGINE_READY_TIMEOUT_S for big models.",
            "engine_ready_timeout",
        ),
        (
            "smoke_failed",
            "Test completion failed",
            "The API answers, but a real completion failed.",
            "Read the answer shown as evidence; if the engine is broken, relaunch.",
            "",
        ),
        (
            "ray_ended",
            "Ray ended",
            "The Ray process of a node ended, and the engine with it; nobody ended its container.",
            "Read the last lines of that rank: Ray says which of its processes ended. A relaunch starts the whole group anew.",
            "",
        ),
        (
            "exited",
            "Engine ended",
            "The engine's process ended.",
            "Read its first error line; exit code 137 means that it was killed.",
            "died start_limit",
        ),
        (
            "engine_crashed",
            "Engine crashed",
            "The engine ended with a segmentation fault or another signal.",
            "Relaunch; if it happens again, try another image or driver.",
            "sigsegv cuda_error gpu_fault",
        ),
        (
            "rank_lost",
            "A rank is gone",
            "One rank has ended; without it its service is dead.",
            "Relaunch: services that still serve are left alone. The first fatal line across the ranks is shown.",
            "rendezvous_timeout",
        ),
    ),
]

_API = [
    *_group(
        "api",
        TRANSIENT,
        (
            "not_listening",
            "Nothing listens yet",
            "Nothing listens on the API's port. While the engine loads, that is normal.",
            "Wait while the engine loads; if it does not run, start it.",
            "",
        ),
        ("warming_up", "Still warming up", "The API listens, but says that it is not ready yet.", "Wait.", "loading"),
        (
            "proxy_no_backend",
            "Proxy without engine",
            "A reverse proxy answers, but it does not reach the engine.",
            "Wait while the engine loads; otherwise check the proxy's target.",
            "bad_gateway",
        ),
        (
            "busy_or_hung",
            "No answer in time",
            "The API took the request and did not answer in time: it is busy or hangs.",
            "Look at power draw and running requests; if tokens stand still, relaunch.",
            "",
        ),
        ("rate_limited_api", "Too many requests", "The API asks us to slow down.", "Wait and try again.", ""),
    ),
    *_group(
        "api",
        NEVER,
        (
            "wrong_model",
            "Another model answers",
            "Something answers on this port, but it does not serve this deployment's model.",
            "Find out what listens there (`ss -ltnp`), stop it or choose another port.",
            "model_not_served",
        ),
        (
            "other_service",
            "Another service answers",
            "Something else than an OpenAI API listens on this port.",
            "Find out what listens there (`ss -ltnp`), stop it or choose another port.",
            "",
        ),
        (
            "unauthorized",
            "API key missing",
            "The API is up, but refuses requests without its key.",
            "Give this deployment's API key.",
            "api_key_missing",
        ),
        (
            "bad_request",
            "Request refused",
            "The API refused the request as invalid.",
            "Read the message and correct the request.",
            "",
        ),
        (
            "thinking_used_budget",
            "Thinking used the whole budget",
            "The model spent all tokens on reasoning before the answer began. The model is healthy.",
            "Allow more tokens.",
            "reasoning_used_budget",
        ),
        (
            "garbled_answer",
            "Answer is garbage",
            "The model answers, but not with text: repeated or broken tokens.",
            "Check quantisation, attention backend and chat template; compare with another image.",
            "empty_or_garbled",
        ),
    ),
    *_group(
        "api",
        ONCE,
        (
            "engine_dead",
            "Engine died behind its API",
            "The API still answers, but says that its engine has died.",
            "Relaunch.",
            "engine_error rpc_timeout",
        ),
        (
            "stream_broken",
            "Stream broke off",
            "A streamed answer broke off, or carried an error, after the status 200.",
            "Check the endpoint again; relaunch if the engine is dead.",
            "stream_error",
        ),
    ),
]

_RUNTIME = [
    *_group(
        "runtime",
        POLICY,
        (
            "rebooted",
            "Node rebooted",
            "The node was rebooted since, and the deployment did not come back by itself.",
            "Relaunch.",
            "",
        ),
        (
            "replaced",
            "Replaced by something else",
            "Other services run where this deployment ran.",
            "Relaunch; the plan shows what would be stopped.",
            "",
        ),
        (
            "vanished",
            "Gone",
            "The deployment's processes are gone without a reboot.",
            "Read the last lines of its log, then relaunch.",
            "no_such_container",
        ),
    ),
]

_PEOPLE = _group(
    "people",
    NEVER,
    ("cancelled", "Cancelled", "A person cancelled it.", "Start it again when you want.", "canceled"),
    ("superseded", "Superseded", "A newer revision took its place.", "Nothing to do.", ""),
    (
        "plan_changed",
        "The plan has changed",
        "The nodes have changed since the plan was shown, so that other commands would run.",
        "Look at the new plan and confirm it.",
        "",
    ),
)

_REQUEST = _group(
    "request",
    NEVER,
    (
        "bad_input",
        "Not a valid value",
        "A value that was given cannot be used.",
        "Correct the field that is named.",
        "",
    ),
    ("malformed_json", "Not JSON", "The body of the request is not valid JSON.", "Send a JSON object.", ""),
    (
        "unsupported_media_type",
        "Wrong content type",
        "The body of the request is of a type that is not read here.",
        "Send JSON with Content-Type: application/json.",
        "",
    ),
    (
        "not_found",
        "Not there",
        "There is nothing of that name or number, or you may not see it.",
        "Check the address.",
        "",
    ),
    ("in_use", "Still in use", "Something else still needs it.", "Remove what uses it first; the answer names it.", ""),
    (
        "consent_needed",
        "Consent missing",
        "Something is in the way, and nobody has allowed it to be stopped.",
        "Tick what may be stopped in the plan, and confirm again.",
        "",
    ),
    (
        "secret_missing",
        "Secret not stored",
        "A secret that this needs by name is not stored.",
        "Store it under the name that is given.",
        "",
    ),
    (
        "forbidden",
        "Not allowed",
        "Your role does not allow this.",
        "Ask somebody whose role does; the answer names it.",
        "",
    ),
    ("not_signed_in", "Not signed in", "This needs somebody who is signed in.", "Sign in, or send a token.", ""),
)

_OURS = [
    *_group(
        "us",
        CLEANUP,
        (
            "cleanup_incomplete",
            "Not everything is gone",
            "Stopping did not end cleanly: something of ours is still on a node.",
            "Cleaning up goes on; look at what is left, and remove it by hand if it stays.",
            "",
        ),
    ),
    *_group(
        "us",
        TRANSIENT,
        (
            "no_worker",
            "No worker",
            "No worker process is there to carry this out.",
            "Start the worker; the run begins by itself then.",
            "",
        ),
    ),
    *_group(
        "us",
        NEVER,
        (
            "internal",
            "Our own bug",
            "This is a mistake of sparkweb itself; the node did nothing wrong.",
            "Report it with the number of the run.",
            "",
        ),
    ),
]

REASONS: dict[str, Reason] = {
    entry.name: entry
    for entry in (
        *_ACCESS,
        *_HOST,
        *_CONFLICT,
        *_MEMORY,
        *_DATA,
        *_CLUSTER,
        *_ENGINE,
        *_API,
        *_RUNTIME,
        *_PEOPLE,
        *_REQUEST,
        *_OURS,
    )
}
ALIASES: dict[str, str] = {alias: entry.name for entry in REASONS.values() for alias in entry.aliases}


def reason(name: str) -> Reason:
    """The reason of that name or alias (`unknown_argument:--swap-space` counts by what stands before the colon).

    Raises UnknownReason.
    """
    key = name.partition(":")[0]
    try:
        return REASONS[ALIASES.get(key, key)]
    except KeyError:
        raise UnknownReason(name) from None


def known(name: str) -> bool:
    """Whether `reason(name)` would find it."""
    key = name.partition(":")[0]
    return key in REASONS or key in ALIASES


def as_json() -> list[dict[str, Any]]:
    """The whole table as plain values, in the table's order."""
    return [
        {
            "name": entry.name,
            "group": entry.group,
            "retry": entry.retry,
            "delays_s": list(entry.delays_s),
            "retries": entry.retries,
            "title": entry.title,
            "sentence": entry.sentence,
            "remedy": entry.remedy,
            "next_action": entry.next_action,
            "aliases": list(entry.aliases),
        }
        for entry in REASONS.values()
    ]


def as_text(entries: Iterable[Reason]) -> str:
    """The table for reading on a terminal."""
    return "".join(f"{entry.name:<24} {entry.group:<9} {entry.retry:<19} {entry.sentence}\n" for entry in entries)


def main(argv: Sequence[str], stdin: BinaryIO, stdout: TextIO) -> int:
    """`manage.py reasons [--json]`; standard input is not read.

    Returns the exit status: 2 for an argument that is not known.
    """
    unknown = [word for word in argv if word != "--json"]
    if unknown:
        stdout.write(f"unknown argument {unknown[0]}; the only one is --json\n")
        return 2
    stdout.write(
        json.dumps(as_json(), indent=1, ensure_ascii=False) + "\n" if "--json" in argv else as_text(REASONS.values())
    )
    return 0
