package kubeapi

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Config returns how to reach the Kubernetes API: by a kubeconfig file or, if
// that is "", as the pod's service account. what names the flag or feature that
// needs it, for errors. Config reads files but uses no network.
func Config(kubeconfig, contentType, what string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		if config, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("%s needs --kubeconfig outside of a cluster: %w", what, err)
		}
	} else if config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", kubeconfig, err)
	}
	config.ContentType = contentType
	return config, nil
}
