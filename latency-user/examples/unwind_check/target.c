/* Threads that block in different places, built without frame pointers:
 *   cc -O2 -fomit-frame-pointer -o target target.c -lcrypto -lpthread
 */
#include <openssl/evp.h>
#include <openssl/bio.h>
#include <openssl/rsa.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int ends[2];
static volatile int sink;

#define LAYER(name, next) \
    __attribute__((noinline)) static int name(int n) { volatile char room[24 + 8 * (n & 3)]; \
        room[0] = n; int r = next(n + 1); return r + room[0]; }

static int sleep_ms(int n) { struct timespec t = {0, 1000000}; sink = n; return nanosleep(&t, 0) + 1; }
LAYER(sleep_c, sleep_ms)
LAYER(sleep_b, sleep_c)
LAYER(sleep_a, sleep_b)

static int take(int n) { pthread_mutex_lock(&lock); struct timespec t = {0, 500000}; nanosleep(&t, 0);
    pthread_mutex_unlock(&lock); return n; }
LAYER(lock_b, take)
LAYER(lock_a, lock_b)

static int pull(int n) { char c; return read(ends[0], &c, 1) + n; }
LAYER(read_b, pull)
LAYER(read_a, read_b)

static long slow(BIO *b, int op, const char *p, size_t len, int i, long l, int ret, size_t *done) {
    (void)b; (void)p; (void)len; (void)i; (void)l; (void)done;
    if (op == BIO_CB_WRITE) sleep_a(1);
    return ret; }

static void *sleeper(void *p) { for (;;) sink += sleep_a(1); return p; }
static void *locker(void *p) { for (;;) sink += lock_a(1); return p; }
static void *reader(void *p) { for (;;) sink += read_a(1); return p; }
static void *writer(void *p) { for (;;) { usleep(700); if (write(ends[1], "x", 1) < 0) break; } return p; }
static void *bio(void *p) {
    BIO *b = BIO_new(BIO_s_mem());
    BIO_set_callback_ex(b, slow);
    for (;;) { BIO_printf(b, "%d", 7); (void)BIO_reset(b); }
    return p; }
static void *signer(void *p) {
    EVP_PKEY *key = EVP_RSA_gen(4096);
    unsigned char digest[64] = {1}, out[1024];
    for (;;) { EVP_MD_CTX *c = EVP_MD_CTX_new(); size_t n = sizeof out;
        EVP_DigestSignInit(c, 0, EVP_sha256(), 0, key);
        sink += EVP_DigestSign(c, out, &n, digest, sizeof digest); EVP_MD_CTX_free(c); }
    return p; }
static void handler(int s) { sink = sleep_a(s); }
static void *signalled(void *p) { for (;;) pthread_kill(pthread_self(), SIGUSR1); return p; }

int main(int argc, char **argv) {
    void *(*all[])(void *) = {sleeper, locker, locker, reader, writer, bio, signalled, signer, signer};
    int n = argc > 1 ? 7 : 9;
    (void)argv;
    pthread_t t;
    signal(SIGUSR1, handler);
    if (pipe(ends)) return 1;
    for (int i = 0; i < n; i++) pthread_create(&t, 0, all[i], 0);
    for (;;) sink += sleep_a(1);
}
