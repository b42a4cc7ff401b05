# One image with all programs. It holds nothing else but the public CAs, which
# the sidecars need to verify customer proxies.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=devel
ARG COMMIT=unknown
# The links let manifests written for upstream's images work as they are.
RUN make build GO="env GOOS=$TARGETOS GOARCH=$TARGETARCH go" VERSION="$VERSION" COMMIT="$COMMIT" \
 && mkdir -p /image/usr/bin /image/etc/ssl/certs \
 && cp bin/* /image/usr/bin/ \
 && ln -s usr/bin/konnectivity-server /image/proxy-server \
 && ln -s usr/bin/konnectivity-agent /image/proxy-agent \
 && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/

FROM scratch
COPY --from=build /image/ /
USER 65532:65532
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/konnectivity"]
