# The lean image of a release: all programs, public CAs, licences, and nothing else.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY release/go.mod release/go.sum release/
RUN go mod download && go mod download -C release
COPY . .
ARG TARGETARCH
ARG VERSION=devel
ARG COMMIT=unknown
RUN make image-files SYSTEMS="linux/$TARGETARCH" VERSION="$VERSION" COMMIT="$COMMIT" \
 && mkdir /image && tar -xf bin/image.tar -C /image

FROM scratch
COPY --from=build /image/ /
USER 65532:65532
ENV PATH=/usr/bin:/bin
ENTRYPOINT ["/usr/bin/konnectivity"]
