#!/bin/sh
# dpkg says remove, also of a package that it has unpacked and not configured: it
# calls no preremove then.
set -e
if [ "$1" = remove ]; then
	rm -f /etc/systemd/system/multi-user.target.wants/{{.Name}}.service
fi
if [ -d /run/systemd/system ]; then
	if [ "$1" = remove ] && systemctl --quiet is-active {{.Name}}.service; then
		systemctl stop {{.Name}}.service
	fi
	systemctl daemon-reload
fi
