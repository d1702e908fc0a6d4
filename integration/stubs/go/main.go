// Prints the addresses of a name as Go's own resolver finds them.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
)

func main() {
	resolver := net.Resolver{PreferGo: true}
	addresses, err := resolver.LookupHost(context.Background(), os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for _, address := range addresses {
		fmt.Println(address)
	}
}
