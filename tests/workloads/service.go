// Four goroutines that sign through cgo, under one lock of C's.
package main

/*
#cgo LDFLAGS: -lcrypto
#include <pthread.h>
#include <unistd.h>
#include <openssl/evp.h>
static pthread_mutex_t keys = PTHREAD_MUTEX_INITIALIZER;
static EVP_PKEY *key;
__attribute__((noinline)) int c_sign(int a) {
    unsigned char out[128];
    size_t n = sizeof out;
    pthread_mutex_lock(&keys);
    if (!key)
        key = EVP_PKEY_Q_keygen(0, 0, "EC", "P-256");
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    EVP_DigestSignInit(c, 0, EVP_sha256(), 0, key);
    EVP_DigestSign(c, out, &n, (const unsigned char *)"m", 1);
    EVP_MD_CTX_free(c);
    usleep(300);
    pthread_mutex_unlock(&keys);
    return a + 1;
}
*/
import "C"
import (
	"bufio"
	"fmt"
	"os"
	"sync"
)

//go:noinline
func serve(count int) int {
	sum := 0
	for i := 0; i < count; i++ {
		sum += int(C.c_sign(C.int(i)))
	}
	return sum
}
func main() {
	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	in.ReadString('\n')
	var group sync.WaitGroup
	for t := 0; t < 4; t++ {
		group.Add(1)
		go func() { defer group.Done(); serve(400) }()
	}
	group.Wait()
	fmt.Println("done")
	in.ReadString('\n')
}
