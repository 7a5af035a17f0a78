/*
 * Three OpenSSL ASYNC jobs on one thread, each of which pauses inside EVP_PKEY_sign, on a stack of
 * its own: the calls return in another order than a stack of return addresses has. A return probe
 * there kills the process.
 *
 *   asyncjobs [--wait]     ends with status 0 once all three have signed
 */
#include "workload.h"

#include <openssl/async.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>

#define JOBS 3

static EVP_PKEY *g_key;

/* Pauses like a hardware engine that waits for its device, then does the work in software. */
static int pausing_private_encrypt(int length, const unsigned char *from, unsigned char *to,
                   RSA *rsa, int padding)
{
    ASYNC_pause_job();
    return RSA_meth_get_priv_enc(RSA_PKCS1_OpenSSL())(length, from, to, rsa, padding);
}

static int sign(void *unused)
{
    unsigned char digest[32] = "a digest", signature[512];
    size_t length = sizeof signature;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new(g_key, NULL);
    int result = context && EVP_PKEY_sign_init(context) == 1 &&
             EVP_PKEY_sign(context, signature, &length, digest, sizeof digest) == 1;

    (void)unused;
    EVP_PKEY_CTX_free(context);
    return result;
}

int main(int argc, char **argv)
{
    ASYNC_JOB *jobs[JOBS] = { NULL };
    ASYNC_WAIT_CTX *waits[JOBS];
    int paused = 0, signatures = 0, left = JOBS;
    RSA_METHOD *method = RSA_meth_dup(RSA_PKCS1_OpenSSL());
    RSA *rsa = RSA_new();
    BIGNUM *exponent = BN_new();

    if (!method || !rsa || !exponent || !BN_set_word(exponent, RSA_F4) ||
        !RSA_generate_key_ex(rsa, 2048, exponent, NULL) ||
        !RSA_meth_set_priv_enc(method, pausing_private_encrypt) ||
        !RSA_set_method(rsa, method) || !(g_key = EVP_PKEY_new()) ||
        !EVP_PKEY_set1_RSA(g_key, rsa))
        die("cannot make the key");
    for (int i = 0; i < JOBS; i++)
        waits[i] = ASYNC_WAIT_CTX_new();
    if (argc > 1 && !strcmp(argv[1], "--wait"))
        wait_for_line("asyncjobs: ready");
    /* All start before any goes on, and they go on in the order they started. */
    while (left > 0)
        for (int i = 0; i < JOBS; i++) {
            int result = 0;

            if (!waits[i])
                continue;
            switch (ASYNC_start_job(&jobs[i], waits[i], &result, sign, NULL, 0)) {
            case ASYNC_PAUSE:
                paused++;
                break;
            case ASYNC_FINISH:
                signatures += result;
                /* fall through */
            default:
                ASYNC_WAIT_CTX_free(waits[i]);
                waits[i] = NULL;
                left--;
            }
        }
    printf("{\"paused\":%d,\"signatures\":%d}\n", paused, signatures);
    return paused == JOBS && signatures == JOBS ? 0 : 1;
}
