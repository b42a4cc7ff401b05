package resolve

import (
	"context"
	"net/netip"
	"strings"

	"konnectivity/tunnel"
)

// Services looks up Services of the hosted cluster.
type Services interface {
	// ClusterIPs returns the addresses of a Service. A Service that does not
	// exist or has no address (headless, ExternalName) is NotFound; an API
	// that cannot be asked is Unavailable, within a few seconds.
	ClusterIPs(ctx context.Context, namespace, name string) ([]netip.Addr, error)
}

// ByService resolves NAME.NAMESPACE and NAME.NAMESPACE.svc[.anything] to the
// ClusterIPs of that Service. For other names it returns NotFound at once.
func ByService(services Services) Resolver {
	return lookupFunc(func(ctx context.Context, name string) (Answer, error) {
		service, namespace, ok := splitService(name)
		if !ok {
			return Answer{}, NotFound(name)
		}
		addrs, err := services.ClusterIPs(ctx, namespace, service)
		if err != nil {
			return Answer{}, err
		}
		if addrs = tidy(addrs); len(addrs) == 0 {
			return Answer{}, NotFound(name)
		}
		return Answer{Addrs: addrs, Source: FromService}, nil
	})
}

func splitService(host string) (service, namespace string, ok bool) {
	labels := strings.Split(tunnel.CanonicalHost(host), ".")
	if len(labels) < 2 || (len(labels) > 2 && labels[2] != "svc") {
		return "", "", false
	}
	return labels[0], labels[1], IsLabel(labels[0]) && IsLabel(labels[1])
}

// maxLabel is the greatest length of a DNS label (RFC 1035 §2.3.4), such as the
// name of a Service or namespace.
const maxLabel = 63

// IsLabel reports whether s can name a Service or namespace (RFC 1123 label). Nothing
// else may get into the path of an API request.
func IsLabel(s string) bool {
	return s != "" && len(s) <= maxLabel && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && s[0] != '-' && s[len(s)-1] != '-'
}
