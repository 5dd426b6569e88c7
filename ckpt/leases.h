// Which files have leases (F_SETLEASE): to open one sends its holder a signal, which ends a program that does
// not expect it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace rekindle::ckpt {

class Leases {
 public:
  // Begins to read them. The kernel waits for all processors before it gives that table (/proc/locks), 10 ms
  // and more, which a job need not stand still for.
  static std::shared_ptr<Leases> BeginReading();
  ~Leases();
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  // Of any file system, to be sure. Waits until they are read. Thread-safe.
  bool Has(uint64_t inode);

 private:
  Leases() = default;
  void Read();
  void Await();

  std::thread reader_;
  std::once_flag joined_;
  std::set<uint64_t> inodes_;
};

}  // namespace rekindle::ckpt
