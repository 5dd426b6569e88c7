# rk_library(NAME SOURCES... DEPS...)  a module's library; public includes are relative to the source root.
function(rk_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  rk_share_equally(${name} ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} rk_deps PRIVATE rk_warnings)
endfunction()

# rk_test(NAME SOURCES... DEPS... [LABEL unit] [TIMEOUT 600] [ONE_THREAD])  a GoogleTest program. ONE_THREAD: what it
# tests has no threads, and nothing for ThreadSanitizer.
function(rk_test name)
  cmake_parse_arguments(ARG "ONE_THREAD" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT BUILD_TESTING OR (ARG_ONE_THREAD AND REKINDLE_SANITIZER STREQUAL "thread"))
    return()
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(NOT REKINDLE_SANITIZER STREQUAL "")
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 3")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  rk_share_equally(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} rk_test_main rk_warnings)
  rk_link_fast(${name})
  # What a test does itself need not be fast, only built fast.
  if(REKINDLE_SANITIZER STREQUAL "")
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
  endif()
  if(ARG_LABEL STREQUAL "integration")
    add_test(NAME ${name} COMMAND ${CMAKE_SOURCE_DIR}/tests/integration/own_machine.sh $<TARGET_FILE:${name}>)
  else()
    add_test(NAME ${name} COMMAND ${name})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  if(REKINDLE_SANITIZER STREQUAL "thread")
    # Children of tests make threads, whatever threads their test has.
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/tsan.supp:die_after_fork=0")
  endif()
  if(ARG_LABEL STREQUAL "unit")
    add_dependencies(unit_tests ${name})
  endif()
endfunction()

# rk_program_without_debug(NAME)  keeps the debug information of a program in bin/.debug/NAME.debug, where debuggers
# look for it. It is nine tenths of the file, and the kernel reads megabytes around what a program needs of itself.
function(rk_program_without_debug name)
  if(NOT CMAKE_OBJCOPY OR NOT CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo" OR NOT REKINDLE_SANITIZER STREQUAL "")
    return()
  endif()
  set(_folder ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/.debug)
  add_custom_command(TARGET ${name} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E make_directory ${_folder}
    COMMAND ${CMAKE_OBJCOPY} --only-keep-debug $<TARGET_FILE:${name}> ${_folder}/${name}.debug
    COMMAND ${CMAKE_OBJCOPY} --strip-debug --remove-section=.gnu_debuglink
            --add-gnu-debuglink=${_folder}/${name}.debug $<TARGET_FILE:${name}>
    VERBATIM)
endfunction()
