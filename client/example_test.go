package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"

	"golang.org/x/net/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/client-go/rest"

	"konnectivity/client"
)

// options are those of all examples: the server's address, and the program's certificate.
func options() client.Options {
	return client.Options{Address: serverAddress, CAFile: "ca.crt", CertFile: "tls.crt", KeyFile: "tls.key"}
}

func Example() {
	c, err := client.New(client.Options{
		Address: serverAddress, // such as "konnectivity-server-local:8090"
		CAFile:  "ca.crt", CertFile: "tls.crt", KeyFile: "tls.key",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	conn, err := c.DialContext(context.Background(), "tcp", webAddress)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	fmt.Println("connected")
	// Output: connected
}

// A program that is told by its environment where the server is, as a sidecar can be.
func ExampleFromEnvironment() {
	for name, value := range map[string]string{ // the pod's manifest does this
		"KONNECTIVITY_ADDRESS": serverAddress, "KONNECTIVITY_CA_CERT_PATH": "ca.crt",
		"KONNECTIVITY_TLS_CERT_PATH": "tls.crt", "KONNECTIVITY_TLS_KEY_PATH": "tls.key",
	} {
		os.Setenv(name, value)
		defer os.Unsetenv(name)
	}
	options, err := client.FromEnvironment()
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := client.New(options)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	conn, err := c.Dial("tcp", webAddress)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	fmt.Println("connected")
	// Output: connected
}

// An http.Client whose requests go through the tunnel.
func ExampleClient_DialContext_http() {
	c, err := client.New(options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	transport := &http.Transport{DialContext: c.DialContext}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get("http://" + webAddress)
	fmt.Println(body(answer, err))
	// Output: hello
}

// The same by the server's unix socket.
func ExampleClient_DialContext_socket() {
	c, err := client.New(client.Options{Socket: socketPath})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	transport := &http.Transport{DialContext: c.DialContext}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get("http://" + webAddress)
	fmt.Println(body(answer, err))
	// Output: hello
}

// A gRPC client, as a CSI driver has one. passthrough leaves the name to the agent.
func ExampleClient_DialContext_grpc() {
	c, err := client.New(options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	dial := func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
	conn, err := grpc.NewClient("passthrough:///"+rpcAddress, grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(), new(grpc_health_v1.HealthCheckRequest))
	fmt.Println(answer.GetStatus(), err)
	// Output: SERVING <nil>
}

// Clients of a Kubernetes API behind the tunnel, as a controller has them.
func ExampleClient_DialContext_kubernetes() {
	c, err := client.New(options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	config := &rest.Config{Host: "http://" + webAddress, Dial: c.DialContext}
	api, err := rest.HTTPClientFor(config) // or kubernetes.NewForConfig(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer api.CloseIdleConnections()
	fmt.Println(body(api.Get(config.Host)))
	// Output: hello
}

// Only some hosts through the tunnel, by golang.org/x/net/proxy.
func ExampleClient_Dial_proxy() {
	c, err := client.New(options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	hosts := proxy.NewPerHost(proxy.Direct, c)
	hosts.AddFromString("127.0.0.0/8,*.svc")
	conn, err := hosts.DialContext(context.Background(), "tcp", webAddress)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	fmt.Println("connected")
	// Output: connected
}

// What a program can do about a dial that failed.
func ExampleDialError() {
	c, err := client.New(options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	_, err = c.Dial("tcp", "no port")
	if failed, ok := errors.AsType[*client.DialError](err); ok {
		fmt.Println(failed.Failure.Label(), failed.Failure.Retryable())
	}
	// Output: bad_address false
}
