#!/bin/sh
set -e
systemd-sysusers {{.Name}}.conf
systemd-tmpfiles --create {{.Name}}.conf
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart {{.Name}}.service
fi
