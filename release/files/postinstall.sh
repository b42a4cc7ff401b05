#!/bin/sh
set -e
systemd-sysusers {{.Name}}.conf
systemd-tmpfiles --create {{.Name}}.conf
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
{{- if eq .Service "agent"}}
	# An agent that was started without a store may be one that ignores the unit's
	# RestartKillSignal, and would be killed once TimeoutStopSec is over.
	pid=$(systemctl show --property=MainPID {{.Name}}.service) # before systemd 230 without --value
	environ=/proc/${pid#MainPID=}/environ
	if [ -e "$environ" ] && ! grep -qz ^FDSTORE= "$environ"; then
		systemctl stop {{.Name}}.service
		exec systemctl start {{.Name}}.service
	fi
{{- end}}
	systemctl try-restart {{.Name}}.service
fi
