// Where on the machine the files of a copy lie that has folders or files of it bound over others (--bind).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

// Immutable. Paths are absolute, and taken as they are written: links on the way are not followed.
class BoundPaths {
 public:
  BoundPaths() = default;  // nothing is bound
  // (on the machine, in the copy), in the order in which they are bound: a later one lies over those before,
  // and what it begins with is seen through them.
  explicit BoundPaths(const std::vector<std::pair<std::string, std::string>>& binds);

  bool empty() const { return binds_.empty(); }
  // Does a copy see something bound at this path?
  bool Cover(std::string_view path) const;
  // The machine's path of what a copy sees here.
  std::string OnMachine(const std::string& path) const;
  // The same of all that is checked before a job is restored: its working folder, its files and its outputs.
  v1::JobManifest OnMachine(v1::JobManifest manifest) const;
  // Is something of that covered?
  bool CoverSomethingOf(const v1::JobManifest& manifest) const;
  // Different of any two that differ.
  std::string Text() const;

 private:
  std::vector<std::pair<std::string, std::string>> binds_;  // without a slash at their ends
};

}  // namespace rekindle::restore
