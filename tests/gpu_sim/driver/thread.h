// Threads of the driver inside a job: they take none of the job's signals.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace rekindle::gpu_sim {

template <typename Body>
std::thread StartThread(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace rekindle::gpu_sim
