// Package line joins two network namespaces by a line that is far, narrow or
// lossy, on machines whose kernel cannot emulate one. Each end is a TUN device;
// this process carries the packets between them. It needs Linux, root and
// /dev/net/tun, and no programs. Nothing is left behind when it ends.
//
// Shaper decides what becomes of a packet and has no I/O. Namespace, device and
// Line do the rest.
package line
