#!/usr/bin/env bash
# Move a program with its connections to another host, step by step. Runs on the source; DUMP and RESTORE are commands
# that end it here and restore it there, from what the first has written into DIRECTORY.
# Usage: move_by_hand.sh DESTINATION ADDRESS/LENGTH DEVICE DIRECTORY DUMP RESTORE
set -euo pipefail
destination=$1 net=$2 device=$3 directory=$4 dump=$5 restore=$6
address=${net%/*} programs=$(dirname "$0") family=ip nodad=
[[ $address != *:* ]] || family=ip6 nodad='nodad preferred_lft 0'
ssh=(ssh -S "/run/move_by_hand.%C" "$destination")
now() { date +%s%3N; }

"${ssh[@]}" -o ControlMaster=yes -o ControlPersist=yes -f true
trap '"${ssh[@]}" -q -O exit' EXIT
# A packet that comes before the socket is restored would be answered with a reset.
"${ssh[@]}" "mkdir -p $directory && nft -f -" <<-END
	table inet by_hand {
	    chain incoming { type filter hook input priority -300; $family daddr $address drop; }
	    chain outgoing { type filter hook output priority -300; $family saddr $address drop; }
	}
	END
began=$(now)
$dump
dumped=$(now)
ip addr del "$net" dev "$device"
tar -C "$directory" -cf - . | "${ssh[@]}" tar -C "$directory" -xf -
copied=$(now)
"${ssh[@]}" "ip addr add $net dev $device $nodad && $restore </dev/null >/dev/null && nft delete table inet by_hand &&
    /usr/bin/python3 $programs/announce.py $device $address"
restored=$(now)
# Only now: without CRIU's lock the kernel would answer for the connections that are gone.
nft list tables | sed -n 's/^table \(.* CRIU-.*\)/delete table \1/p' | nft -f -
echo "dump $((dumped - began)) ms, copy $((copied - dumped)) ms, restore $((restored - copied)) ms"
