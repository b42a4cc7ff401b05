package kubeapi

import (
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"konnectivity/internal/files"
)

// maxKubeconfig is what a Secret may hold, and far more than a kubeconfig has.
const maxKubeconfig = 1 << 20

// Config returns how to reach the Kubernetes API: by a kubeconfig file or, if
// that is "", as the pod's service account. what names the flag or feature that
// needs it, for errors. Config reads files but uses no network.
func Config(kubeconfig, what string) (*rest.Config, error) {
	return ConfigOf("kubeconfig", kubeconfig, what)
}

// ConfigOf is Config for another flag than --kubeconfig.
func ConfigOf(flag, kubeconfig, what string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("%s needs --%s outside of a cluster: %w", what, flag, err)
		}
		return config, nil
	}
	config, err := fromFile(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--%s=%s: %w", flag, kubeconfig, err)
	}
	return config, nil
}

// fromFile reads a kubeconfig. clientcmd's own loader falls back to the pod's service
// account for a file that leads nowhere; then a control plane would take the cluster
// that hosts it for its own.
func fromFile(path string) (*rest.Config, error) {
	data, err := files.Read(path, maxKubeconfig)
	if err != nil {
		return nil, err
	}
	loaded, err := clientcmd.Load(data)
	if err != nil {
		return nil, err
	}
	for _, cluster := range loaded.Clusters {
		cluster.LocationOfOrigin = path
	}
	for _, user := range loaded.AuthInfos {
		user.LocationOfOrigin = path
	}
	if err := clientcmd.ResolveLocalPaths(loaded); err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*loaded, &clientcmd.ConfigOverrides{}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("it leads to no cluster: want a cluster, a context that names it, and current-context")
	}
	return config, err
}
