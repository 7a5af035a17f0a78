/* latelib LIBRARY N: waits for a line, then opens another copy of libcrypto and signs N times
 * with that copy. The one it was linked with is there from the start and does nothing: the
 * tracer can attach, and has to notice the second one.
 *
 * It signs one second after the opening: the time a tracer has to notice. */
#define WORKLOAD_OPENSSL
#include "workload.h"

#include <dlfcn.h>
#include <openssl/crypto.h>

/* ISO C has no cast from an object's pointer to a function's; POSIX promises that it works. */
#define FIND(name) \
    __typeof__(&name) its_##name; \
    *(void **)&its_##name = dlsym(library, #name); \
    if (its_##name == NULL) \
    die("no " #name " in %s", argv[1])

int main(int argc, char **argv)
{
    if (argc != 3)
        die("Usage: latelib LIBRARY N");
    unsigned long count = parse_count(argv[2], "N");
    fprintf(stderr, "latelib: linked with %s\n", OpenSSL_version(OPENSSL_VERSION_STRING));
    wait_for_line("latelib: ready");
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (library == NULL)
        die("%s", dlerror());
    FIND(EVP_PKEY_Q_keygen);
    FIND(EVP_MD_CTX_new);
    FIND(EVP_MD_CTX_reset);
    FIND(EVP_DigestSignInit);
    FIND(EVP_DigestSign);
    FIND(EVP_sha256);
    EVP_PKEY *key = its_EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    EVP_MD_CTX *context = its_EVP_MD_CTX_new();
    unsigned char signature[128];
    sleep(1);
    for (unsigned long i = 0; i < count; i++) {
        size_t bytes = sizeof signature;
        if (its_EVP_MD_CTX_reset(context) != 1
            || its_EVP_DigestSignInit(context, NULL, its_EVP_sha256(), NULL, key) != 1
            || its_EVP_DigestSign(context, signature, &bytes, (const unsigned char *)"m", 1) != 1)
            die("signing failed");
    }
    printf("{\"schema\":\"latelib/1\",\"pid\":%d,\"operations\":[{\"operation\":\"sign\","
           "\"algorithm\":\"ecdsa-p256\",\"count\":%lu,\"failures\":0,\"size_queries\":0}]}\n",
           (int)getpid(), count);
    return 0;
}
