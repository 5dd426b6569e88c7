// Which files have leases (F_SETLEASE): to open one sends its holder a signal, which ends a program that does
// not expect it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/string_view.h"

namespace rekindle::ckpt {

class Leases {
 public:
  // Begins to read them. The kernel waits for all processors before it gives that table (/proc/locks), 10 ms
  // and more, which a job need not stand still for.
  static std::shared_ptr<Leases> BeginReading();
  ~Leases();
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  // By what stat says. Where a file system has made up the device (btrfs, overlay: the kernel's table may
  // have another one, that of the file below), any lease counts that has the inode's number. Waits until they
  // are read. Thread-safe.
  bool Has(dev_t device, uint64_t inode);

 private:
  friend class LeasesTest;

  Leases() = default;
  void Parse(absl::string_view table);
  void Read();
  void Await();

  std::thread reader_;
  std::once_flag joined_;
  std::multimap<uint64_t, dev_t> devices_;  // by inode
};

}  // namespace rekindle::ckpt
