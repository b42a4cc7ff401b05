<#
.SYNOPSIS
Registers or removes a konnectivity program as a Windows service.

.DESCRIPTION
Run it as an administrator, in the folder that it was unpacked to:

    .\windows\service.ps1 install agent     # the first time, it only makes the folder for settings
    .\windows\service.ps1 remove agent      # keeps settings, certificates and log

The folder is $env:ProgramData\konnectivity\PROGRAM. Put certificates and key there, edit flags.txt,
and run install again, which starts the service; do so after each change of flags.txt, or to
upgrade. The service has an account of its own, "NT SERVICE\konnectivity-PROGRAM", which may read
the folder and write its log.
#>
param(
	[Parameter(Mandatory)][ValidateSet('install', 'remove')][string]$Action,
	[Parameter(Mandatory)][ValidateSet('agent', 'socks5-proxy', 'https-proxy')][string]$Program
)
$ErrorActionPreference = 'Stop'

$name = "konnectivity-$Program"
$folder = Join-Path $env:ProgramData "konnectivity\$Program"
$flags = Join-Path $folder 'flags.txt'
$bin = Join-Path $env:ProgramFiles 'konnectivity'
$events = "HKLM:\SYSTEM\CurrentControlSet\Services\EventLog\Application\$name"

# Run runs a program, and fails if it does.
function Run([string]$File, [string[]]$Arguments) {
	& $File @Arguments | Out-Null
	if ($LASTEXITCODE -ne 0) { throw "$File $($Arguments -join ' '): exit status $LASTEXITCODE" }
}

# RemoveService stops the service, which drains, and waits until it is gone.
function RemoveService {
	if (-not (Get-Service $name -ErrorAction SilentlyContinue)) { return }
	Stop-Service $name
	Run sc.exe @('delete', $name)
	while (Get-Service $name -ErrorAction SilentlyContinue) { Start-Sleep -Milliseconds 200 }
}

if ($Action -eq 'remove') {
	RemoveService
	Remove-Item $events -Force -Recurse -ErrorAction SilentlyContinue
	Remove-Item (Join-Path $bin "$name.exe") -Force -ErrorAction SilentlyContinue
	Write-Host "$name is removed; $folder is kept."
	exit
}

if (-not (Test-Path $flags)) {
	New-Item $folder -ItemType Directory -Force | Out-Null
	Run icacls.exe @($folder, '/inheritance:r', '/grant:r', '*S-1-5-18:(OI)(CI)F', '*S-1-5-32-544:(OI)(CI)F')
	Copy-Item (Join-Path $PSScriptRoot "$Program.txt") $flags
	Write-Host "Put certificates and key into $folder, edit flags.txt there, and run this again."
	exit
}

$words = @(Get-Content $flags | ForEach-Object { $_.Trim() } | Where-Object { $_ -and -not $_.StartsWith('#') })
$command = (@("`"$bin\$name.exe`"") + ($words | ForEach-Object { "`"$_`"" })) -join ' '

RemoveService
New-Item $bin -ItemType Directory -Force | Out-Null
Copy-Item (Join-Path $PSScriptRoot "..\$name.exe") $bin -Force
New-Service $name -BinaryPathName $command -DisplayName $name -StartupType Automatic | Out-Null
Run sc.exe @('config', $name, 'obj=', "NT SERVICE\$name")
Run sc.exe @('failure', $name, 'reset=', '86400', 'actions=', 'restart/2000')
Run sc.exe @('failureflag', $name, '1') # also after an exit status that is not 0
Run icacls.exe @($folder, '/grant:r', "NT SERVICE\${name}:(OI)(CI)RX")
$log = New-Item (Join-Path $folder 'log') -ItemType Directory -Force
Run icacls.exe @($log.FullName, '/grant:r', "NT SERVICE\${name}:(OI)(CI)M")
New-Item $events -Force | Out-Null
New-ItemProperty $events -Name EventMessageFile -PropertyType ExpandString -Value '%SystemRoot%\System32\EventCreate.exe' -Force | Out-Null
New-ItemProperty $events -Name TypesSupported -PropertyType DWord -Value 7 -Force | Out-Null
Start-Service $name
Get-Service $name
