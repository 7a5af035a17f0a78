/* signloop MODE N: N operations by one way of signing with OpenSSL, and how many they were.
 *
 * Each mode is one of the ways in which programs sign: the tracer must find exactly the printed
 * operations for each. Keys and signatures to verify are made before the start, and no other
 * signing function is called after it. */
#define WORKLOAD_OPENSSL
#include "workload.h"

#include <openssl/dh.h>
#include <openssl/dsa.h>
#include <openssl/ec.h>
#include <openssl/ecdsa.h>
#include <openssl/rsa.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>

#define MESSAGE_BYTES 200
#define DIGEST_BYTES 32

static struct {
    unsigned long signs, verifies, failures, size_queries, abandoned;
} done;

static EVP_PKEY *key;
static const EVP_MD *digest; /* NULL for Ed25519, which hashes by itself */
static unsigned char message[MESSAGE_BYTES], hash[DIGEST_BYTES];
static unsigned char signature[1024], forged[1024];
static size_t signature_bytes, forged_bytes;
static bool pss;

static void use_p256(void) { key = make_ec("P-256"); }
static void use_p384(void) { key = make_ec("P-384"); }
static void use_p521(void) { key = make_ec("P-521"); }
static void use_rsa_2048(void) { key = make_rsa(2048); }
static void use_rsa_3072(void) { key = make_rsa(3072); }
static void use_rsa_4096(void) { key = make_rsa(4096); }
static void use_rsa_pss(void) { key = make_rsa(2048); pss = true; }
static void use_ed25519(void) { key = make_ed25519(); digest = NULL; }

static void init(EVP_MD_CTX *context, bool signing)
{
    EVP_PKEY_CTX *parameters;
    EVP_MD_CTX_reset(context);
    check_ssl((signing ? EVP_DigestSignInit : EVP_DigestVerifyInit)(context, &parameters, digest,
                                                                    NULL, key) == 1,
              "initializing");
    if (pss)
        check_ssl(EVP_PKEY_CTX_set_rsa_padding(parameters, RSA_PKCS1_PSS_PADDING) == 1, "PSS");
}

static void sign_message(EVP_MD_CTX *context, const void *data, size_t bytes, unsigned char *out,
                         size_t capacity, size_t *out_bytes)
{
    init(context, true);
    *out_bytes = capacity;
    check_ssl(EVP_DigestSign(context, out, out_bytes, data, bytes) == 1, "EVP_DigestSign");
}

/* One signing and one verification in one call each. */
static void evp_digestsign(EVP_MD_CTX *context)
{
    sign_message(context, message, MESSAGE_BYTES, signature, sizeof signature, &signature_bytes);
    done.signs++;
    init(context, false);
    check_ssl(EVP_DigestVerify(context, signature, signature_bytes, message, MESSAGE_BYTES) == 1,
              "EVP_DigestVerify");
    done.verifies++;
}

static void evp_digestsign_final(EVP_MD_CTX *context)
{
    init(context, true);
    signature_bytes = sizeof signature;
    check_ssl(EVP_DigestSignUpdate(context, message, MESSAGE_BYTES) == 1
                  && EVP_DigestSignFinal(context, signature, &signature_bytes) == 1,
              "EVP_DigestSignFinal");
    done.signs++;
    init(context, false);
    check_ssl(EVP_DigestVerifyUpdate(context, message, MESSAGE_BYTES) == 1
                  && EVP_DigestVerifyFinal(context, signature, signature_bytes) == 1,
              "EVP_DigestVerifyFinal");
    done.verifies++;
}

static void evp_pkey_sign(EVP_MD_CTX *unused)
{
    (void)unused;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new(key, NULL);
    signature_bytes = sizeof signature;
    check_ssl(EVP_PKEY_sign_init(context) == 1
                  && EVP_PKEY_sign(context, signature, &signature_bytes, hash, DIGEST_BYTES) == 1,
              "EVP_PKEY_sign");
    done.signs++;
    check_ssl(EVP_PKEY_verify_init(context) == 1
                  && EVP_PKEY_verify(context, signature, signature_bytes, hash, DIGEST_BYTES) == 1,
              "EVP_PKEY_verify");
    done.verifies++;
    EVP_PKEY_CTX_free(context);
}

static void evp_signfinal(EVP_MD_CTX *context)
{
    unsigned bytes = sizeof signature;
    EVP_MD_CTX_reset(context);
    check_ssl(EVP_SignInit(context, digest) == 1
                  && EVP_SignUpdate(context, message, MESSAGE_BYTES) == 1
                  && EVP_SignFinal(context, signature, &bytes, key) == 1,
              "EVP_SignFinal");
    done.signs++;
    EVP_MD_CTX_reset(context);
    check_ssl(EVP_VerifyInit(context, digest) == 1
                  && EVP_VerifyUpdate(context, message, MESSAGE_BYTES) == 1
                  && EVP_VerifyFinal(context, signature, bytes, key) == 1,
              "EVP_VerifyFinal");
    done.verifies++;
}

/* The low-level functions, as old programs call them. */

static RSA *rsa;
static EC_KEY *ec;
static DSA *dsa;

static void use_low_level_rsa(void)
{
    use_rsa_2048();
    check_ssl((rsa = EVP_PKEY_get1_RSA(key)) != NULL, "EVP_PKEY_get1_RSA");
}

static void use_low_level_ec(void)
{
    use_p256();
    check_ssl((ec = EVP_PKEY_get1_EC_KEY(key)) != NULL, "EVP_PKEY_get1_EC_KEY");
}

/* A known group (RFC 5114, 2048 bits with a subgroup of 256) saves seconds of searching. */
static void use_low_level_dsa(void)
{
    DH *group = DH_get_2048_256();
    dsa = DSA_new();
    check_ssl(group != NULL && dsa != NULL
                  && DSA_set0_pqg(dsa, BN_dup(DH_get0_p(group)), BN_dup(DH_get0_q(group)),
                                  BN_dup(DH_get0_g(group)))
                  && DSA_generate_key(dsa),
              "making a DSA key");
    DH_free(group);
}

static void rsa_sign_direct(EVP_MD_CTX *unused)
{
    (void)unused;
    unsigned bytes = sizeof signature;
    check_ssl(RSA_sign(NID_sha256, hash, DIGEST_BYTES, signature, &bytes, rsa) == 1, "RSA_sign");
    done.signs++;
    check_ssl(RSA_verify(NID_sha256, hash, DIGEST_BYTES, signature, bytes, rsa) == 1, "RSA_verify");
    done.verifies++;
}

static void rsa_private_encrypt(EVP_MD_CTX *unused)
{
    (void)unused;
    check_ssl(RSA_private_encrypt(DIGEST_BYTES, hash, signature, rsa, RSA_PKCS1_PADDING) == 256,
              "RSA_private_encrypt");
    done.signs++;
}

static void ecdsa_sign_direct(EVP_MD_CTX *unused)
{
    (void)unused;
    unsigned bytes = sizeof signature;
    check_ssl(ECDSA_sign(0, hash, DIGEST_BYTES, signature, &bytes, ec) == 1, "ECDSA_sign");
    done.signs++;
    check_ssl(ECDSA_verify(0, hash, DIGEST_BYTES, signature, (int)bytes, ec) == 1, "ECDSA_verify");
    done.verifies++;
}

static void ecdsa_do_sign(EVP_MD_CTX *unused)
{
    (void)unused;
    ECDSA_SIG *numbers = ECDSA_do_sign(hash, DIGEST_BYTES, ec);
    check_ssl(numbers != NULL, "ECDSA_do_sign");
    done.signs++;
    check_ssl(ECDSA_do_verify(hash, DIGEST_BYTES, numbers, ec) == 1, "ECDSA_do_verify");
    done.verifies++;
    ECDSA_SIG_free(numbers);
}

static void dsa_direct(EVP_MD_CTX *unused)
{
    (void)unused;
    unsigned bytes = sizeof signature;
    check_ssl(DSA_sign(0, hash, DIGEST_BYTES, signature, &bytes, dsa) == 1, "DSA_sign");
    done.signs++;
    check_ssl(DSA_verify(0, hash, DIGEST_BYTES, signature, (int)bytes, dsa) == 1, "DSA_verify");
    done.verifies++;
}

/* What is no success, or no operation at all. */

static void use_forged(void)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    use_p256();
    sign_message(context, "other", 5, forged, sizeof forged, &forged_bytes);
    EVP_MD_CTX_free(context);
}

static void verify_fail(EVP_MD_CTX *context)
{
    init(context, false);
    check_ssl(EVP_DigestVerify(context, forged, forged_bytes, message, MESSAGE_BYTES) == 0,
              "refusing a wrong signature");
    ERR_clear_error();
    done.verifies++;
    done.failures++;
}

static void size_query_only(EVP_MD_CTX *context)
{
    init(context, true);
    check_ssl(EVP_DigestSign(context, NULL, &signature_bytes, message, MESSAGE_BYTES) == 1,
              "asking for the signature's size");
    done.size_queries++;
}

/* A key whose private operation, deep inside EVP_DigestSign, never comes back. */

static _Thread_local jmp_buf before_call;
static _Thread_local bool leave_by_jump, leave_by_exit;

static int private_operation(int bytes, const unsigned char *from, unsigned char *to, RSA *of,
                             int padding)
{
    if (leave_by_jump)
        longjmp(before_call, 1);
    if (leave_by_exit)
        pthread_exit(NULL);
    return RSA_meth_get_priv_enc(RSA_PKCS1_OpenSSL())(bytes, from, to, of, padding);
}

static void use_leaving_rsa(void)
{
    EVP_PKEY *whole = make_rsa(2048);
    RSA_METHOD *method = RSA_meth_dup(RSA_PKCS1_OpenSSL());
    RSA *own = RSAPrivateKey_dup(EVP_PKEY_get0_RSA(whole));
    key = EVP_PKEY_new();
    check_ssl(method != NULL && own != NULL && RSA_meth_set_priv_enc(method, private_operation)
                  && RSA_set_method(own, method) && EVP_PKEY_assign_RSA(key, own),
              "making a key with a method of its own");
    EVP_PKEY_free(whole);
}

/* A call that is jumped out of, then a whole one from the same place. */
static void jump_out(EVP_MD_CTX *context)
{
    leave_by_jump = true;
    if (setjmp(before_call) == 0)
        sign_message(context, message, MESSAGE_BYTES, signature, sizeof signature,
                     &signature_bytes);
    leave_by_jump = false;
    done.abandoned++;
    sign_message(context, message, MESSAGE_BYTES, signature, sizeof signature, &signature_bytes);
    done.signs++;
}

static void *die_inside(void *context)
{
    unsigned char own[512];
    size_t bytes;
    sign_message(context, message, MESSAGE_BYTES, own, sizeof own, &bytes);
    leave_by_exit = true;
    sign_message(context, message, MESSAGE_BYTES, own, sizeof own, &bytes);
    die("the thread outlived its call");
}

/* A thread that signs once and ends inside its second call. */
static void thread_churn(EVP_MD_CTX *context)
{
    pthread_t thread;
    check_ssl(pthread_create(&thread, NULL, die_inside, context) == 0
                  && pthread_join(thread, NULL) == 0,
              "starting a thread");
    done.signs++;
    done.abandoned++;
}

static const struct mode {
    const char *name, *algorithm;
    void (*prepare)(void);
    void (*once)(EVP_MD_CTX *context);
} modes[] = {
    { "evp-digestsign", "ecdsa-p256", use_p256, evp_digestsign },
    { "evp-digestsign-final", "ecdsa-p256", use_p256, evp_digestsign_final },
    { "evp-pkey-sign", "ecdsa-p256", use_p256, evp_pkey_sign },
    { "evp-signfinal", "rsa-2048", use_rsa_2048, evp_signfinal },
    { "rsa-sign-direct", "rsa-2048", use_low_level_rsa, rsa_sign_direct },
    { "rsa-private-encrypt", "rsa-2048", use_low_level_rsa, rsa_private_encrypt },
    { "rsa-pss", "rsa-2048", use_rsa_pss, evp_digestsign },
    { "ecdsa-sign-direct", "ecdsa-p256", use_low_level_ec, ecdsa_sign_direct },
    /* Its signature is two numbers in memory: no length tells the curve. */
    { "ecdsa-do-sign", "ecdsa", use_low_level_ec, ecdsa_do_sign },
    { "dsa", "dsa-q256", use_low_level_dsa, dsa_direct },
    { "ed25519", "ed25519", use_ed25519, evp_digestsign },
    { "p384", "ecdsa-p384", use_p384, evp_digestsign },
    { "p521", "ecdsa-p521", use_p521, evp_digestsign },
    { "rsa-3072", "rsa-3072", use_rsa_3072, evp_digestsign },
    { "rsa-4096", "rsa-4096", use_rsa_4096, evp_digestsign },
    { "verify-fail", "ecdsa-p256", use_forged, verify_fail },
    { "size-query-only", "rsa-2048", use_rsa_2048, size_query_only },
    { "longjmp", "rsa-2048", use_leaving_rsa, jump_out },
    { "thread-churn", "rsa-2048", use_leaving_rsa, thread_churn },
};

static void usage(FILE *stream)
{
    fputs("Usage: signloop MODE N [--wait] [--wait-end]\n"
          "N operations by one way of signing; the numbers of calls are printed as JSON.\n\n"
          "  --wait      say 'signloop: ready' on stderr, begin after a line on stdin\n"
          "  --wait-end  say 'signloop: done', end after a line on stdin\n\nModes:\n",
          stream);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        fprintf(stream, "  %-22s %s\n", modes[i].name, modes[i].algorithm);
}

int main(int argc, char **argv)
{
    const struct mode *mode = NULL;
    bool wait_start = false, wait_end = false;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        usage(stdout);
        return 0;
    }
    for (size_t i = 0; argc >= 3 && i < sizeof modes / sizeof *modes; i++)
        if (strcmp(argv[1], modes[i].name) == 0)
            mode = &modes[i];
    if (mode == NULL) {
        usage(stderr);
        return 2;
    }
    unsigned long count = parse_count(argv[2], "N");
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--wait") == 0)
            wait_start = true;
        else if (strcmp(argv[i], "--wait-end") == 0)
            wait_end = true;
        else
            die("unexpected argument '%s'; see --help", argv[i]);
    }

    EVP_MD_CTX *context = EVP_MD_CTX_new();
    digest = EVP_sha256();
    memset(message, 'm', sizeof message);
    memset(hash, 'h', sizeof hash);
    mode->prepare();
    if (wait_start)
        wait_for_line("signloop: ready");
    for (unsigned long i = 0; i < count; i++)
        mode->once(context);
    printf("{\"schema\":\"signloop/1\",\"pid\":%d,\"mode\":\"%s\",\"abandoned\":%lu,"
           "\"operations\":[",
           (int)getpid(), mode->name, done.abandoned);
    if (done.signs + done.size_queries != 0)
        printf("{\"operation\":\"sign\",\"algorithm\":\"%s\",\"count\":%lu,\"failures\":0,"
               "\"size_queries\":%lu}",
               mode->algorithm, done.signs, done.size_queries);
    if (done.verifies != 0)
        printf("%s{\"operation\":\"verify\",\"algorithm\":\"%s\",\"count\":%lu,"
               "\"failures\":%lu,\"size_queries\":0}",
               done.signs != 0 ? "," : "", mode->algorithm, done.verifies, done.failures);
    printf("]}\n");
    fflush(stdout);
    if (wait_end)
        wait_for_line("signloop: done");
    return 0;
}
