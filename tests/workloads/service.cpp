// Four threads that take one lock, some of them in the handler of an exception.
#include <chrono>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace keys {

static std::mutex vault_lock;

struct Vault {
    __attribute__((noinline)) int sign(int request);
};

static inline __attribute__((always_inline)) void work(int us) {
    std::this_thread::sleep_for(std::chrono::microseconds(us));
}

__attribute__((noinline)) static int checked(int request) {
    if (request % 3 == 0)
        throw std::runtime_error("a request that is refused");
    std::lock_guard<std::mutex> held(vault_lock);
    work(300);
    return request;
}

int Vault::sign(int request) {
    try {
        return checked(request) + 1;
    } catch (const std::exception &) {
        std::lock_guard<std::mutex> held(vault_lock);
        work(200);
        return 0;
    }
}

} // namespace keys

int main() {
    puts("ready");
    fflush(stdout);
    getchar();
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; thread++)
        threads.emplace_back([] {
            keys::Vault vault;
            volatile int sum = 0;
            for (int request = 0; request < 400; request++)
                sum = sum + vault.sign(request);
        });
    for (auto &thread : threads)
        thread.join();
    puts("done");
    fflush(stdout);
    getchar();
}
