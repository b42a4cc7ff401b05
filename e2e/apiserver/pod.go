package apiserver

import (
	"fmt"
	"strings"
)

// PodCertificates is a path of Kubernetes' API from 1.37 on: where pods' certificates are
// requested.
const PodCertificates = "/apis/certificates.k8s.io/v1/podcertificaterequests"

// APIServerPod is a Deployment of a kube-apiserver that runs as an ordinary pod
// in the namespace my-control-plane. more are further fields of its container, a
// line each.
func APIServerPod(command []string, more ...string) string {
	fields := ""
	for _, field := range more {
		fields += "          " + field + "\n"
	}
	return fmt.Sprintf(apiServerPod, strings.Join(command, `", "`), fields)
}

const apiServerPod = `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kube-apiserver, namespace: my-control-plane}
spec:
  selector: {matchLabels: {app: kube-apiserver}}
  template:
    metadata: {labels: {app: kube-apiserver}}
    spec:
      containers:
        - name: kube-apiserver
          image: kube-apiserver:example
          command: ["%s"]
          volumeMounts: [{name: pki, mountPath: /etc/kubernetes/pki}]
%s      volumes: [{name: pki, secret: {secretName: kube-apiserver}}]
`
