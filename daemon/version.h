#pragma once

namespace rekindle::daemon {

// As cmake/BuildVersion.cmake makes it: the release, and of which commit.
extern const char kVersion[];

}  // namespace rekindle::daemon
