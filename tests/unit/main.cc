// The main of all GoogleTest programs.
#include "absl/base/config.h"
#include "base/deadlock_checks.h"
#include "gmock/gmock.h"

int main(int argc, char** argv) {
#if ABSL_LTS_RELEASE_VERSION > 20220623
  // Since 2023 a Mutex that goes in a build without assertions does not tell those checks, which find cycles
  // with whatever has its address later.
  rekindle::LeaveOutDeadlockChecks();
#endif
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
