// Tells that a file was written to. All watches of the process share one instance of inotify: the kernel
// gives all processes of a user together no more than 128 (fs.inotify.max_user_instances).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace rekindle::daemon {

// Thread-compatible; different ones are independent, also of the same file.
class FileWatch {
 public:
  // Null where the kernel has no instance or watch to spare, or there is no such file.
  static std::unique_ptr<FileWatch> Of(const std::string& path);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  // Until the file was written to, or has gone; at once, when that was since the last call. False: not within
  // `timeout`.
  bool WaitForChange(absl::Duration timeout);

  // Has `told` called when the next WaitForChange would return at once, on a thread of the process's own:
  // soon after the file was written to, but not each time where that is often. It must not wait for anything,
  // nor use a FileWatch. False: there can be no such thread now, and it is never called.
  bool OnChange(std::function<void()> told);

 private:
  friend class FileWatches;
  FileWatch() = default;
  int number_ = -1;  // the kernel's; that of all watches of one file
  // Under FileWatches::mutex_.
  bool changed_ = false;
  std::function<void()> told_;
};

}  // namespace rekindle::daemon
