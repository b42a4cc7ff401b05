package tunnel

import "syscall"

// RawConn returns an error: on Windows a read does not return "nothing
// now", but is ordered and reported when it is done. Package net does that
// well; connections are read and written through it, at some more cost.
func RawConn(syscall.Conn) (syscall.RawConn, error) { return nil, syscall.EWINDOWS }

// RawRead is never called, for want of a RawConn.
func RawRead(uintptr, []byte) (int, error) { return 0, syscall.EWINDOWS }

// RawWrite is never called, for want of a RawConn.
func RawWrite(uintptr, []byte) (int, error) { return 0, syscall.EWINDOWS }

// AwaitInput is never called, for want of a RawConn.
func AwaitInput(syscall.RawConn) {}
