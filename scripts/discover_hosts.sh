#!/bin/sh
# Prints the hosts that hvd-discover published, for horovodrun --host-discovery-script.
hosts=${HVD_HOSTS_FILE:-/var/run/hvd-elastic/hosts}
[ -f "$hosts" ] && [ -r "$hosts" ] && cat <"$hosts" 2>/dev/null
exit 0
