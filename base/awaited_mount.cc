#include "base/awaited_mount.h"

#include <mntent.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

namespace rekindle {
namespace {

// The places in a file that has fstab's format; none when it can't be read.
std::set<std::string> MountPoints(const char* table) {
  constexpr size_t kMostBytesOfLine = 16u << 10;
  std::set<std::string> points;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(::setmntent(table, "re"), ::endmntent);
  if (!file) return points;
  const std::unique_ptr<char[]> line(new char[kMostBytesOfLine]);
  mntent entry;
  while (::getmntent_r(file.get(), &entry, line.get(), kMostBytesOfLine) != nullptr) {
    std::string point(entry.mnt_dir);
    while (point.size() > 1 && point.back() == '/') point.pop_back();
    points.insert(std::move(point));
  }
  return points;
}

}  // namespace

std::string AwaitedMountPoint(const std::string& path, const char* fstab, const char* mounts) {
  std::set<std::string> awaited = MountPoints(fstab);
  for (const std::string& there : MountPoints(mounts)) awaited.erase(there);
  if (awaited.empty()) return "";
  std::error_code error;
  std::filesystem::path place =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  if (error) return "";
  for (; place.has_relative_path(); place = place.parent_path()) {
    if (awaited.contains(place.string())) return place.string();
  }
  return "";
}

}  // namespace rekindle
