#!/bin/sh
# dpkg says remove, rpm how many versions stay.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now {{.Name}}.service
	elif command -v systemctl >/dev/null; then # enabled in an image, perhaps
		systemctl --quiet disable {{.Name}}.service
	fi
	;;
esac
