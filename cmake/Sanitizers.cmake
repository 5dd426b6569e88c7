set(REKINDLE_SANITIZER "" CACHE STRING "address (ASan with UBSan), thread, or empty")
if(REKINDLE_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_compile_options(-fsanitize-ignorelist=${CMAKE_CURRENT_LIST_DIR}/ubsan.ignore)
  endif()
elseif(REKINDLE_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT REKINDLE_SANITIZER STREQUAL "")
  message(FATAL_ERROR "REKINDLE_SANITIZER must be address, thread or empty, not '${REKINDLE_SANITIZER}'")
endif()

if(NOT REKINDLE_SANITIZER STREQUAL "")
  add_compile_options(-g1)  # lines for the reports
endif()

# rk_tsan_abseil: what lets ThreadSanitizer see Abseil's locks (base/tsan_abseil.cc says why). To be linked before Abseil.
if(REKINDLE_SANITIZER STREQUAL "thread")
  file(STRINGS /usr/include/absl/base/options.h _namespace REGEX "define ABSL_OPTION_INLINE_NAMESPACE_NAME ")
  string(REGEX REPLACE ".* " "" _namespace "${_namespace}")
  string(LENGTH "${_namespace}" _length)
  set(_absl _ZN4absl${_length}${_namespace})
  add_library(rk_tsan_abseil STATIC ${CMAKE_SOURCE_DIR}/base/tsan_abseil.cc)
  target_compile_definitions(rk_tsan_abseil PRIVATE REKINDLE_ABSL="${_absl}")
  foreach(_function
      5Mutex4LockEv
      5Mutex8LockWhenERKNS0_9ConditionE
      5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE
      5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE
      5Mutex7TryLockEv
      5Mutex6UnlockEv
      5MutexD1Ev
      5Mutex5AwaitERKNS0_9ConditionE
      5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE
      5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE
      13base_internal12SpinLockWaitEPSt6atomicIjEiPKNS1_22SpinLockWaitTransitionENS1_14SchedulingModeE)
    target_link_options(rk_tsan_abseil INTERFACE -Wl,--wrap=${_absl}${_function})
  endforeach()
  # A program in which only Abseil itself uses its locks would pass this library by.
  target_link_options(rk_tsan_abseil INTERFACE -Wl,--undefined=__wrap_${_absl}5MutexD1Ev)
endif()

# rk_tell_fuzzer(TARGET)  has code that fuzz targets (tests/fuzz) are about tell libFuzzer where it has been. For clang.
option(REKINDLE_FUZZ "Build the fuzz targets, in a build with REKINDLE_SANITIZER=address" OFF)
if(REKINDLE_FUZZ AND NOT REKINDLE_SANITIZER STREQUAL "address")
  message(FATAL_ERROR "Fuzz targets find little without a sanitizer: add -DREKINDLE_SANITIZER=address to -DREKINDLE_FUZZ=ON")
endif()
function(rk_tell_fuzzer target)
  target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
endfunction()
