// The name under which a pager is found: the path of its socket.
#pragma once

#include <functional>
#include <string>

#include "base/unique_fd.h"

namespace rekindle::restore {

// Owned by one thread.
class PagerName {
 public:
  // That of a listening socket, which outlives this. One without a name can't be given up, nor need it be.
  explicit PagerName(int listener);

  // Takes the name away, so that whoever wants a pager starts one. False, and the name stays: somebody has
  // come by it meanwhile and is not heard yet, `somebody_is_here` says so, or another is just starting a
  // pager. `somebody_is_here`: is asked when nobody can come any more, after who has come was looked for:
  // whoever takes somebody in has to count him before.
  bool GiveUp(const std::function<bool()>& somebody_is_here);

 private:
  const int listener_;
  std::string path_;
};

}  // namespace rekindle::restore
