package tunnel

import "syscall"

// Of Winsock and winerror.h.
const (
	errorNetnameDeleted     syscall.Errno = 64 // a reset, where the kernel tells it through a completion port
	wsaNotEnoughMemory      syscall.Errno = 8
	wsaEIntr                syscall.Errno = 10004
	wsaEAcces               syscall.Errno = 10013
	wsaEMFile               syscall.Errno = 10024
	wsaEAddrInUse           syscall.Errno = 10048
	wsaEAddrNotAvail        syscall.Errno = 10049
	wsaENetDown             syscall.Errno = 10050
	wsaENetUnreach          syscall.Errno = 10051
	wsaEConnAborted         syscall.Errno = 10053 // the machine's own word for a connection that failed
	wsaEConnReset           syscall.Errno = 10054
	wsaENoBufs              syscall.Errno = 10055
	wsaENotConn             syscall.Errno = 10057
	wsaEShutdown            syscall.Errno = 10058
	wsaETimedOut            syscall.Errno = 10060
	wsaEConnRefused         syscall.Errno = 10061
	wsaEHostDown            syscall.Errno = 10064
	wsaEHostUnreach         syscall.Errno = 10065
	errorConnectionRefused  syscall.Errno = 1225
	errorNetworkUnreachable syscall.Errno = 1231
	errorHostUnreachable    syscall.Errno = 1232
	errorConnectionAborted  syscall.Errno = 1236
)

// errnoAliases are the numbers that calls return in the place of each Unix one.
// ConnectEx may return those of winerror.h.
var errnoAliases = map[syscall.Errno][]syscall.Errno{
	syscall.EACCES:        {wsaEAcces},
	syscall.EADDRINUSE:    {wsaEAddrInUse},
	syscall.EADDRNOTAVAIL: {wsaEAddrNotAvail},
	syscall.ECONNABORTED:  {wsaEConnAborted, errorConnectionAborted},
	syscall.ECONNREFUSED:  {wsaEConnRefused, errorConnectionRefused},
	syscall.ECONNRESET:    {wsaEConnReset, errorNetnameDeleted},
	syscall.EHOSTDOWN:     {wsaEHostDown},
	syscall.EHOSTUNREACH:  {wsaEHostUnreach, errorHostUnreachable},
	syscall.EINTR:         {wsaEIntr},
	syscall.EMFILE:        {wsaEMFile},
	syscall.ENETDOWN:      {wsaENetDown},
	syscall.ENETUNREACH:   {wsaENetUnreach, errorNetworkUnreachable},
	syscall.ENOBUFS:       {wsaENoBufs},
	syscall.ENOMEM:        {wsaNotEnoughMemory},
	syscall.ENOTCONN:      {wsaENotConn},
	syscall.EPIPE:         {wsaEShutdown, wsaEConnAborted},
	syscall.ETIMEDOUT:     {wsaETimedOut},
}
