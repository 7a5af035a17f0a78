"""Four threads that sign through ctypes, under one lock of Python's."""
import ctypes, sys, threading, time

lib = ctypes.CDLL('libcrypto.so.3')
p, size = ctypes.c_void_p, ctypes.c_size_t
for name in ('EVP_PKEY_Q_keygen', 'EVP_MD_CTX_new', 'EVP_sha256'):
    getattr(lib, name).restype = p
lib.EVP_DigestSignInit.argtypes = [p, p, p, p, p]
lib.EVP_DigestSign.argtypes = [p, ctypes.c_char_p, ctypes.POINTER(size), ctypes.c_char_p, size]
lib.EVP_MD_CTX_reset.argtypes = [p]
key = lib.EVP_PKEY_Q_keygen(None, None, b'EC', b'P-256')
lock = threading.Lock()


def serve():
    context, out = lib.EVP_MD_CTX_new(), ctypes.create_string_buffer(128)
    for i in range(200):
        with lock:
            lib.EVP_MD_CTX_reset(context)
            lib.EVP_DigestSignInit(context, None, lib.EVP_sha256(), None, key)
            length = size(128)
            lib.EVP_DigestSign(context, out, ctypes.byref(length), b'message', 7)
            time.sleep(0.0003)


print('ready', flush=True)
sys.stdin.readline()
threads = [threading.Thread(target=serve) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print('done', flush=True)
sys.stdin.readline()
