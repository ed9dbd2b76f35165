#!/bin/sh
# launch of deployment 7, revision 3
# plan 91feadb98676ef781bf4212ba0b4218a3463a8572e326061917443f2d394dd03
# Run on each node, stage after stage: sh plan.sh STAGE NODE
#   1 Preflight: spark-1a32, spark-5be3
#   2 Clear: spark-1a32, spark-5be3
#   3 Ray head: spark-1a32
#   4 Ray workers: spark-5be3
#   5 Ray cluster: spark-1a32
#   6 Serve: spark-1a32
#   7 Verify: spark-1a32
SPARKWEB_RUN="${SPARKWEB_RUN-by-hand}"
export SPARKWEB_RUN
case "${1-} ${2-}" in
'1 spark-1a32')
:
# Look at spark-1a32 again [probe]: refuses if the node is not as this plan takes it to be
;;
'1 spark-5be3')
:
# Look at spark-5be3 again [probe]: refuses if the node is not as this plan takes it to be
;;
'2 spark-1a32')
:
# Stop vllm-cluster.service, vllm-proxy.service, vllm-embeddings.service, vllm-reranker.service [job]: units before containers, so that systemd does not bring them back; what does not end within its unit's own limit systemd ends by force
(
sudo -n systemctl stop vllm-cluster.service vllm-proxy.service vllm-embeddings.service vllm-reranker.service
) || exit $?
# Remove vllm_node, vllm_embeddings, reranker [job]: a unit makes each of them anew when it starts; gracefully within 20 s, then by force
(
set -eu
if docker inspect --type container --format '{{.Id}}' vllm_node >/dev/null 2>&1; then
docker stop -t 20 vllm_node || :
docker rm -f vllm_node || if docker inspect --type container --format '{{.Id}}' vllm_node >/dev/null 2>&1; then
exit 1
fi
else
printf '%s\n' 'vllm_node is gone already'
fi
if docker inspect --type container --format '{{.Id}}' vllm_embeddings >/dev/null 2>&1; then
docker stop -t 20 vllm_embeddings || :
docker rm -f vllm_embeddings || if docker inspect --type container --format '{{.Id}}' vllm_embeddings >/dev/null 2>&1; then
exit 1
fi
else
printf '%s\n' 'vllm_embeddings is gone already'
fi
if docker inspect --type container --format '{{.Id}}' reranker >/dev/null 2>&1; then
docker stop -t 20 reranker || :
docker rm -f reranker || if docker inspect --type container --format '{{.Id}}' reranker >/dev/null 2>&1; then
exit 1
fi
else
printf '%s\n' 'reranker is gone already'
fi
) || exit $?
# Wait until the containers are gone [wait]: goes on when Docker no longer lists them
# repeat this until it is so
(
docker ps --format '{{.Names}}'
) || exit $?
# Wait until ports 30000 and 6379 are free [wait]: goes on when nothing listens on 30000 and 6379
# repeat this until it is so
(
{ ss -H -ltn 2>/dev/null || cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; }
) || exit $?
# Wait until 100.7 GiB are free [wait]: waits until 100.7 GiB are free, at most 2 min
# repeat this until it is so
(
grep -E '^(MemTotal|MemFree|MemAvailable):' /proc/meminfo
) || exit $?
# Drop the page cache [job]: on unified memory the engine sees MemFree; a refusal is said and does not fail the launch
(
set -eu
grep -E '^MemFree:' /proc/meminfo || :
sync
if echo 3 | sudo -n /usr/bin/tee /proc/sys/vm/drop_caches >/dev/null; then
grep -E '^MemFree:' /proc/meminfo || :
else
printf '%s\n' 'the page cache was not dropped: this user may not write /proc/sys/vm/drop_caches'
fi
) || exit $?
;;
'2 spark-5be3')
:
# Drop the page cache [job]: on unified memory the engine sees MemFree; a refusal is said and does not fail the launch
(
set -eu
grep -E '^MemFree:' /proc/meminfo || :
sync
if echo 3 | sudo -n /usr/bin/tee /proc/sys/vm/drop_caches >/dev/null; then
grep -E '^MemFree:' /proc/meminfo || :
else
printf '%s\n' 'the page cache was not dropped: this user may not write /proc/sys/vm/drop_caches'
fi
) || exit $?
;;
'3 spark-1a32')
:
# Start vllm-qwen35-r0 [job]
(
set -eu
found=$(docker inspect --type container --format '{{index .Config.Labels "sparkweb.deployment"}}/{{index .Config.Labels "sparkweb.revision"}}/{{index .Config.Labels "sparkweb.run"}} {{.State.Status}}' vllm-qwen35-r0 2>/dev/null) || found=
case "$found" in
'')
:
;;
"7/3/$SPARKWEB_RUN"' running')
printf '%s\n' 'vllm-qwen35-r0 runs already, started by this run'
exit 0
;;
7/*)
printf '%s\n' 'removing vllm-qwen35-r0, left by an earlier run of this deployment'
docker rm -f vllm-qwen35-r0
;;
*)
printf '%s\n' 'a container called vllm-qwen35-r0 is here and does not belong to this deployment; rename or remove it, or choose another container name' >&2
exit 3
;;
esac
docker run -d --name vllm-qwen35-r0 --gpus all --network host --ipc host --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1:-1 --log-driver json-file --log-opt max-size=2g --log-opt max-file=2 -v /models/Qwen3.5-122B-A10B-FP8:/models/Qwen3.5-122B-A10B-FP8:ro -e VLLM_HOST_IP=192.168.200.12 -e NCCL_SOCKET_IFNAME=enp1s0f0np0 -e GLOO_SOCKET_IFNAME=enp1s0f0np0 -e TP_SOCKET_IFNAME=enp1s0f0np0 -e NCCL_IB_HCA=roceP2p1s0f0,rocep1s0f0 -e NCCL_IB_GID_INDEX=3 -e NCCL_DEBUG=INFO -e NCCL_DEBUG_SUBSYS=INIT,NET -e RAY_memory_monitor_refresh_ms=0 -e VLLM_ENGINE_READY_TIMEOUT_S=3600 -e HF_HUB_OFFLINE=1 --label sparkweb.deployment=7 --label sparkweb.revision=3 --label sparkweb.rank=0 --label "sparkweb.run=$SPARKWEB_RUN" hellohal2064/vllm-qwen3.5-gb10 ray start --head --block --node-ip-address=192.168.200.12 --port=6379 --num-gpus=1 --object-store-memory=1073741824 --include-dashboard=false
) || exit $?
# Follow the log of vllm-qwen35-r0 [serve]
# to follow its log: docker logs --follow vllm-qwen35-r0
# Wait until vllm-qwen35-r0 runs [wait]: goes on when Docker says running
# repeat this until it is so
(
docker inspect --type container --format '{{.State.Status}} {{.State.ExitCode}}' vllm-qwen35-r0
) || exit $?
;;
'4 spark-5be3')
:
# Start vllm-qwen35-r1 [job]
(
set -eu
found=$(docker inspect --type container --format '{{index .Config.Labels "sparkweb.deployment"}}/{{index .Config.Labels "sparkweb.revision"}}/{{index .Config.Labels "sparkweb.run"}} {{.State.Status}}' vllm-qwen35-r1 2>/dev/null) || found=
case "$found" in
'')
:
;;
"7/3/$SPARKWEB_RUN"' running')
printf '%s\n' 'vllm-qwen35-r1 runs already, started by this run'
exit 0
;;
7/*)
printf '%s\n' 'removing vllm-qwen35-r1, left by an earlier run of this deployment'
docker rm -f vllm-qwen35-r1
;;
*)
printf '%s\n' 'a container called vllm-qwen35-r1 is here and does not belong to this deployment; rename or remove it, or choose another container name' >&2
exit 3
;;
esac
docker run -d --name vllm-qwen35-r1 --gpus all --network host --ipc host --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1:-1 --log-driver json-file --log-opt max-size=2g --log-opt max-file=2 -v /models/Qwen3.5-122B-A10B-FP8:/models/Qwen3.5-122B-A10B-FP8:ro -e VLLM_HOST_IP=192.168.200.13 -e NCCL_SOCKET_IFNAME=enp1s0f0np0 -e GLOO_SOCKET_IFNAME=enp1s0f0np0 -e TP_SOCKET_IFNAME=enp1s0f0np0 -e NCCL_IB_HCA=roceP2p1s0f0,rocep1s0f0 -e NCCL_IB_GID_INDEX=3 -e NCCL_DEBUG=INFO -e NCCL_DEBUG_SUBSYS=INIT,NET -e RAY_memory_monitor_refresh_ms=0 -e VLLM_ENGINE_READY_TIMEOUT_S=3600 -e HF_HUB_OFFLINE=1 --label sparkweb.deployment=7 --label sparkweb.revision=3 --label sparkweb.rank=1 --label "sparkweb.run=$SPARKWEB_RUN" hellohal2064/vllm-qwen3.5-gb10 ray start --block --address=192.168.200.12:6379 --node-ip-address=192.168.200.13 --num-gpus=1 --object-store-memory=1073741824
) || exit $?
# Follow the log of vllm-qwen35-r1 [serve]
(
set -eu
since= pause=1
while :; do
  began=$(date +%s)
  docker logs --follow ${since:+--since "$since"} vllm-qwen35-r1 2>&1 || :
  now=$(date +%s)
  if [ $((now - began)) -gt 10 ]; then since=$((now - 10)) pause=1; fi
  tries=0
  while state=$(docker inspect --type container --format '{{.State.Status}} {{.State.ExitCode}}' vllm-qwen35-r1 2>/dev/null) || state=; [ -z "$state" ] && ! docker version >/dev/null 2>&1 && [ $tries -lt 300 ]; do
    tries=$((tries + 1))
    sleep 2
  done
  case "$state" in
  running*|paused*|restarting*) ;;
  '') exit 143 ;;
  *) exit "${state#* }" ;;
  esac
  if [ $pause -eq 1 ]; then printf '%s\n' 'sparkweb: docker logs ended although vllm-qwen35-r1 runs; read again, lines of the 10 s before may stand twice'; fi
  sleep $pause
  pause=$((pause < 60 ? pause * 2 : 60))
done
) || exit $?
# Wait until vllm-qwen35-r1 runs [wait]: goes on when Docker says running
# repeat this until it is so
(
docker inspect --type container --format '{{.State.Status}} {{.State.ExitCode}}' vllm-qwen35-r1
) || exit $?
;;
'5 spark-1a32')
:
# Wait until Ray shows 2 nodes and 0.0/2.0 GPU [wait]: goes on when Ray shows exactly 192.168.200.12, 192.168.200.13 and 0.0/2.0 GPU in use
# repeat this until it is so
(
set -eu
docker exec vllm-qwen35-r0 ray status
echo '--- addresses'
docker exec vllm-qwen35-r0 python3 -c 'import json, ray; ray.init(address='"'"'auto'"'"', log_to_driver=False, logging_level='"'"'ERROR'"'"'); print(json.dumps([{'"'"'address'"'"': n['"'"'NodeManagerAddress'"'"'], '"'"'alive'"'"': n['"'"'Alive'"'"'], '"'"'gpus'"'"': n['"'"'Resources'"'"'].get('"'"'GPU'"'"', 0)} for n in ray.nodes()]))' || :
) || exit $?
;;
'6 spark-1a32')
:
# Serve [serve]
(
exec docker exec vllm-qwen35-r0 vllm serve /models/Qwen3.5-122B-A10B-FP8 --served-model-name Qwen/Qwen3.5-122B-A10B-FP8 --host 0.0.0.0 --port 30000 --tensor-parallel-size 2 --gpu-memory-utilization 0.85 --max-model-len 131072 --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser qwen3_coder --distributed-executor-backend ray
) || exit $?
# Wait until the API names Qwen/Qwen3.5-122B-A10B-FP8 [ready]: goes on when http://127.0.0.1:30000/v1/models names Qwen/Qwen3.5-122B-A10B-FP8; stalled after 15 min without progress
# # GET http://127.0.0.1:30000/v1/models through SSH
;;
'7 spark-1a32')
:
# One real completion [smoke]: readiness alone proves nothing: an engine can say 200 and fail at the first request
# # POST http://127.0.0.1:30000/v1/chat/completions through SSH
# A streamed completion [smoke]: an error may stand in a stream that began with 200; the time to the first token is measured here
# # POST http://127.0.0.1:30000/v1/chat/completions through SSH, streamed
# A tool call [smoke]: the recipe names the tool call parser qwen3_coder
# # POST http://127.0.0.1:30000/v1/chat/completions through SSH, with a tool
;;
*)
printf 'usage: sh %s STAGE NODE\n' "$0" >&2
exit 2
;;
esac
